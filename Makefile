# Forwards every task to ./evergrad: `make train`, `make test`, … `make asan tsan` runs both.
.DEFAULT_GOAL := help
.PHONY: Makefile
%:
	@./evergrad $@
