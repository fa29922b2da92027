# make        builds bin/quillon
# make test   installs what the tests need (as root, from Debian) and runs all
# make demo   builds and runs the demo
GO       ?= go
FUZZTIME ?= 3s

export CGO_ENABLED = 0

# Tests that make namespaces, attach XDP programs or measure: one at a time.
SERIAL  = $(shell grep -rlE 'netns|afxdp|testscript|NewSpace|package topo' --include='*_test.go' . | xargs -r -n1 dirname | sort -u)
ALL     = $(shell $(GO) list -f '{{.Dir}}' ./... | sed 's|^$(CURDIR)|.|')
PARALLEL = $(filter-out $(SERIAL),$(ALL))
# Packages that own buffers: also with freed buffers poisoned (-tags pktdebug).
OWNERS  = $(wildcard nf/graph nf/replay nf/port/mem nf/port/pcap tor rack/rnic)
# Packages whose code runs on several threads.
RACE    = $(wildcard nf/graph nf/counter nf/trace controlplane/admin)

# Every fuzz target of the tree, FUZZTIME each, as go test -json. The fuzzer
# sometimes reports its own deadline as a failure, without a failing input
# (go.dev/issue/75804): such a run is repeated.
define FUZZ
grep -rnoE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' . | sort | \
while IFS=: read -r file _ func; do \
  for try in 1 2 3; do \
    out=$$($(GO) test -json -run '^$$' -fuzz "^$${func#func }\$$" -fuzztime $(FUZZTIME) "$$(dirname $$file)"); \
    case $$out in *'Failing input'*) break;; *'context deadline exceeded'*) ;; *) break;; esac; \
  done; \
  printf '%s\n' "$$out"; \
done
endef

.PHONY: all test check fuzz demo bench man lint clean deps

all: bin/quillon

.PHONY: bin/quillon
bin/quillon:
	$(GO) build -trimpath -o $@ ./cmd/quillon

test: deps check
	@$(GO) build -o bin/tally ./internal/tally
	@{ $(GO) test -json $(PARALLEL); \
	   $(GO) test -json -p 1 $(SERIAL); \
	   $(GO) test -json -tags pktdebug $(addprefix ./,$(addsuffix /...,$(OWNERS))); \
	   if command -v gcc >/dev/null; then \
	     CGO_ENABLED=1 $(GO) test -race -json -p 1 $(addprefix ./,$(addsuffix /...,$(RACE))); \
	   else echo 'race detector: left out, gcc is missing (apt-get install gcc libc6-dev)'; fi; \
	   $(FUZZ); \
	 } 2>&1 | bin/tally

# Formatting and vet: complaints end the run before the tests.
check:
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go' 2>/dev/null || find . -name '*.go')); \
	 if [ -n "$$out" ]; then echo "gofmt: run gofmt -w on"; echo "$$out"; exit 1; fi
	@$(GO) vet ./...
	@$(GO) vet -tags pktdebug ./nf/...

# What the tests use beyond Go: name of a program and its Debian package.
TOOLS = ip:iproute2 bridge:iproute2 ethtool:ethtool tshark:tshark setpriv:util-linux unshare:util-linux gcc:gcc
deps:
	@missing=; for t in $(TOOLS); do command -v $${t%%:*} >/dev/null || missing="$$missing $${t##*:}"; done; \
	 [ -e /usr/include/stdlib.h ] || missing="$$missing libc6-dev"; \
	 if [ -z "$$missing" ]; then exit 0; fi; \
	 if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	   echo "missing:$$missing (install them for the tests that would be skipped)"; exit 0; fi; \
	 echo "installing$$missing"; \
	 { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing || \
	   { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }; } >/dev/null || \
	   echo "could not install$$missing: tests that need them say so"

fuzz:
	@$(GO) build -o bin/tally ./internal/tally
	@{ $(FUZZ); } 2>&1 | bin/tally

demo: bin/quillon
	bin/quillon demo $(DEMO)

bench: bin/quillon
	bin/quillon bench $(BENCH)

man: bin/quillon
	bin/quillon man bin/man

lint:
	@command -v golangci-lint >/dev/null || { echo 'golangci-lint is missing: https://golangci-lint.run'; exit 2; }
	golangci-lint run

clean:
	rm -rf bin
