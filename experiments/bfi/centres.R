# Rscript centres.R FOLDER FAMILY LAMBDA STRATIFIED: the estimates of BFI for a folder's tables,
# a centre each, whose first column is the target (of survival the first two: time and event).
# Rscript centres.R FOLDER data: BFI's own tables, as text.
suppressMessages(library(BFI))
given <- commandArgs(TRUE)
folder <- given[1]
if (given[2] == "data") {
  write.csv(trauma, file.path(folder, "trauma.csv"), row.names = FALSE)
  write.csv(Nurses, file.path(folder, "Nurses.csv"), row.names = FALSE)
  quit()
}
family <- given[2]
lambda <- as.numeric(given[3])
stratified <- given[4] == "TRUE"
tables <- lapply(sort(Sys.glob(file.path(folder, "*.csv"))), read.csv, check.names = FALSE)
L <- length(tables)
targets <- if (family == "survival") 1:2 else 1
y_of <- function(t) if (family == "survival") t[, 1:2] else t[, 1]
x_of <- function(t) t[, -targets, drop = FALSE]
precision <- function(t, ...) {
  inv.prior.cov(x_of(t), lambda = lambda, L = L, family = family, basehaz = "exp", ...)
}
fit <- function(t) {
  MAP.estimation(y = y_of(t), X = x_of(t), family = family, Lambda = precision(t), basehaz = "exp",
                 control = list(maxit = 5000, reltol = 1e-14))
}
save <- function(name, theta, A) {
  write.csv(cbind(theta = as.numeric(theta), A), file.path(folder, paste0(name, ".out")),
            row.names = FALSE)
}
start <- proc.time()
fits <- lapply(tables, fit)
Lambda <- precision(tables[[1]])
of_all <- Lambda
if (stratified) of_all <- precision(tables[[1]], stratified = TRUE, strat_par = 1)
one_shot <- bfi(lapply(fits, `[[`, "theta_hat"), lapply(fits, `[[`, "A_hat"),
                c(rep(list(Lambda), L), list(of_all)), family = family, basehaz = "exp",
                stratified = stratified, strat_par = if (stratified) 1 else NULL)
spent <- (proc.time() - start)[["elapsed"]]
for (l in seq_len(L)) save(paste0("centre", l), fits[[l]]$theta_hat, fits[[l]]$A_hat)
save("bfi", one_shot$theta_hat, one_shot$A_hat)
pooled <- fit(do.call(rbind, tables))
save("pooled", pooled$theta_hat, pooled$A_hat)
cat(spent, file = file.path(folder, "seconds.out"))
