# Reads a ledger of posterity (docs/format.md) and prints its sites, and mean and sd by name.
# Rscript ledger.R FILE. For Gaussian, DiagonalGaussian and Beta; base R, so without SHA-256.
refuse <- function(why) { message("refused: ", why); quit(status = 1) }
json <- function(text) {  # the value of a JSON document: lists, texts, numbers, flags, NULL
  pattern <- "\"(\\\\.|[^\"\\\\])*\"|[][{}]|[^][{},:\"[:space:]]+"
  tokens <- regmatches(text, gregexpr(pattern, text, perl = TRUE))[[1]]
  at <- 0
  take <- function() tokens[at <<- at + 1]
  character_of <- function(escape) {  # \n and such, \u00e9, or two of the latter beyond 16 bits
    if (nchar(escape) == 2) return(chartr("ntrbf", "\n\t\r\b\f", substr(escape, 2, 2)))
    code <- strtoi(substring(escape, seq(3, nchar(escape), 6), seq(6, nchar(escape), 6)), 16L)
    intToUtf8(if (base::length(code) == 2) code[1] * 1024 + code[2] - 0x35FDC00 else code)
  }
  string <- function(token) {
    found <- gregexpr("\\\\u[dD][89abAB]..\\\\u....|\\\\u....|\\\\.", token, perl = TRUE)
    regmatches(token, found) <- lapply(regmatches(token, found), vapply, character_of, "")
    substr(token, 2, nchar(token) - 1)
  }
  value <- function(token = take()) {
    if (startsWith(token, "\"")) return(string(token))
    if (!(token %in% c("{", "["))) return(switch(
      token, true = TRUE, false = FALSE, null = NULL, as.numeric(token)))
    out <- list()
    while (!((first <- take()) %in% c("}", "]"))) {
      name <- if (token == "{") string(first)
      out <- c(out, setNames(list(value(if (is.null(name)) first else take())), name))
    }
    out
  }
  value()
}
file <- file(commandArgs(trailingOnly = TRUE)[1], "rb")
length <- sum(as.integer(readBin(file, "raw", 8)) * 256^(0:7))  # of the header, little endian
if (base::length(bytes <- readBin(file, "raw", min(length, 2^25))) < length) refuse("half a file")
header <- json(rawToChar(bytes))
text <- header$`__metadata__`$posterity
manifest <- if (is.null(text)) refuse("a file without a manifest") else json(text)
if (manifest$format != 2) refuse(paste("format", manifest$format))
arrays <- header[names(header) != "__metadata__"]
data <- readBin(file, "raw", max(sapply(arrays, function(one) one$data_offsets[[2]])))
array_of <- function(name) {
  if (is.null(own <- arrays[[name]])) return(numeric())  # nobody contributes
  if (own$dtype != "F64") refuse(name)
  readBin(data[(own$data_offsets[[1]] + 1):own$data_offsets[[2]]], "double", 2^26, endian = "little")
}
fields <- if (manifest$tree$type == "Ledger") manifest$tree$fields else refuse(manifest$tree$type)
add <- function(prior, factors) prior + rowSums(matrix(factors, base::length(prior)))
total <- lapply(setNames(nm = names(fields$prior$fields)), function(field)  # natural parameters
  add(array_of(paste0("prior/", field)), array_of(paste0("factors/", field))))
moments <- switch(fields$prior$type,
  Beta = with(list(a = total$a_minus_one + 1, b = total$b_minus_one + 1),
    list(mean = a / (a + b), variance = a * b / (a + b + 1) / (a + b)^2)),
  DiagonalGaussian = list(mean = total$precision_mean / total$precision, variance = 1 / total$precision),
  Gaussian = with(list(v = solve(matrix(total$precision, base::length(total$precision_mean)))),
    list(mean = drop(v %*% total$precision_mean), variance = diag(v))),
  refuse(fields$prior$type))
names <- c(unlist(fields$prior$names), paste0("z", seq_along(moments$mean) - 1))[seq_along(moments$mean)]
sites <- c("sites", unlist(fields$sites)[!as.logical(unlist(fields$forgotten))])
rows <- sprintf("%s\t%.15g\t%.15g", enc2utf8(names), moments$mean, sqrt(moments$variance))
writeLines(enc2utf8(c(paste(sites, collapse = "\t"), rows)), useBytes = TRUE)
