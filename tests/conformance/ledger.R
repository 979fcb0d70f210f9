# Reads a ledger of posterity (docs/format.md) and prints its sites, and mean and sd by name.
# Rscript ledger.R FILE. Of Gaussian, DiagonalGaussian and Beta; base R alone, which has no SHA-256:
# the digests are not looked at.

refuse <- function(why) { message("refused: ", why); quit(status = 1) }

json <- function(text) {  # values of one JSON document, by recursion
  chars <- strsplit(text, "")[[1]]
  at <- 1
  blank <- function() while (chars[at] %in% c(" ", "\n", "\t", "\r")) at <<- at + 1
  unit <- function() {
    at <<- at + 4
    strtoi(paste(chars[at - 3:0], collapse = ""), 16L)
  }
  string <- function() {
    out <- character()
    at <<- at + 1
    while (chars[at] != "\"") {
      if (chars[at] == "\\") {
        at <<- at + 1
        if (chars[at] == "u") {
          code <- unit()
          if (code >= 0xD800 && code < 0xDC00) {  # the first half of a character beyond 16 bits
            at <<- at + 2
            code <- 0x10000 + (code - 0xD800) * 1024 + unit() - 0xDC00
          }
          out <- c(out, intToUtf8(code))
        } else out <- c(out, switch(chars[at], n = "\n", t = "\t", r = "\r", b = "\b", f = "\f", chars[at]))
      } else out <- c(out, chars[at])
      at <<- at + 1
    }
    at <<- at + 1
    paste(out, collapse = "")
  }
  value <- function() {
    blank()
    first <- chars[at]
    if (first == "\"") return(string())
    if (first %in% c("{", "[")) {
      out <- list()
      at <<- at + 1
      repeat {
        blank()
        if (chars[at] == ",") { at <<- at + 1; blank() }
        if (chars[at] %in% c("}", "]")) { at <<- at + 1; return(out) }
        name <- NULL
        if (first == "{") { name <- string(); blank(); at <<- at + 1 }
        own <- list(value())
        if (!is.null(name)) names(own) <- name
        out <- c(out, own)
      }
    }
    end <- at
    while (end <= length(chars) && !(chars[end] %in% c(",", "}", "]", " "))) end <- end + 1
    word <- paste(chars[at:(end - 1)], collapse = "")
    at <<- end
    switch(word, true = TRUE, false = FALSE, null = NULL, as.numeric(word))
  }
  value()
}

file <- file(commandArgs(trailingOnly = TRUE)[1], "rb")
length <- sum(as.integer(readBin(file, "raw", 8)) * 256^(0:7))  # of the header, little endian
bytes <- readBin(file, "raw", min(length, 2^25))
if (base::length(bytes) < length) refuse("a header beyond the file")
header <- json(rawToChar(bytes))
text <- header$`__metadata__`$posterity
if (is.null(text)) refuse("a file without a manifest")
manifest <- json(text)
if (manifest$format != 2) refuse(paste("format", manifest$format))
data <- readBin(file, "raw", max(sapply(header[names(header) != "__metadata__"], function(one) one$data_offsets[[2]])))
array_of <- function(name) {
  own <- header[[name]]
  if (is.null(own)) return(numeric())
  if (own$dtype != "F64") refuse(name)
  from <- own$data_offsets[[1]]
  readBin(data[(from + 1):own$data_offsets[[2]]], "double", (own$data_offsets[[2]] - from) / 8, endian = "little")
}
tree <- manifest$tree
if (tree$type != "Ledger") refuse(tree$type)
prior <- tree$fields$prior
total <- lapply(setNames(nm = names(prior$fields)), function(field) {  # natural parameters, added up
  start <- array_of(paste0("prior/", field))
  start + rowSums(matrix(array_of(paste0("factors/", field)), nrow = base::length(start)))
})
if (prior$type == "Beta") {
  a <- total$a_minus_one + 1
  b <- total$b_minus_one + 1
  mean <- a / (a + b)
  sd <- sqrt(a * b / (a + b + 1)) / (a + b)
} else if (prior$type == "DiagonalGaussian") {
  mean <- total$precision_mean / total$precision
  sd <- 1 / sqrt(total$precision)
} else if (prior$type == "Gaussian") {
  covariance <- solve(matrix(total$precision, base::length(total$precision_mean)))
  mean <- drop(covariance %*% total$precision_mean)
  sd <- sqrt(diag(covariance))
} else refuse(prior$type)
sites <- unlist(tree$fields$sites)[!as.logical(unlist(tree$fields$forgotten))]
lines <- paste(c("sites", sites), collapse = "\t")
names <- if (is.null(prior$names)) paste0("z", seq_along(mean) - 1) else unlist(prior$names)
lines <- c(lines, sprintf("%s\t%.15g\t%.15g", enc2utf8(names), mean, sd))
writeLines(enc2utf8(lines), useBytes = TRUE)  # UTF-8 whatever the locale is
