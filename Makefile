# make        builds bin/quillon
# make check  formatting, vet, and the tests that need no root, shortened; two to three minutes, then only what changed
# make test   installs what the tests need (as root, from Debian) and runs all
# make soak   worlds under faults and attack until stopped, or HOURS=8; see bin/soak-failed
# make test-rxe  all cases with RDMA clients and servers in guests, and the package in a Debian guest; an hour or two
# make check-arm64  builds for arm64, and runs under emulation the tests that need no devices
# make rivals  builds bin/rivals, which measures beside other people's programs, and tests it
# make install  PREFIX=/usr/local: the program, its pages, completions and systemd unit; DESTDIR= for packagers
# make packages  bin/packages: .deb, .tar.gz and an OCI image, for amd64 and arm64
# make demo   builds and runs the demo
# make profile  measures anew what the compiler optimises for; minutes
GO       ?= go
FUZZTIME ?= 1s
# With -fuzz=. the compiler marks branches, and the fuzzer keeps inputs that take new ones. make fuzz
# does so. It compiles all packages once more, which takes minutes; in a second it gains nothing.
GUIDED   =
# Worlds that swordbox is compared in with a bare wire, four times as many as there
# are histories, and ten times as many as for clover-steer; ordinary runs do few.
SCHEDULES ?= 10000

export CGO_ENABLED = 0
# Debian's ip, bridge and ethtool, also for a user or a service without them.
export PATH := $(PATH):/usr/sbin:/sbin

MODULE  = $(shell sed -n 's/^module //p' go.mod)
# Tests that make namespaces or attach XDP programs: one package at a time. Most of
# their time they wait, so that the others run beside them.
SERIAL  = $(shell grep -rlE 'netns|afxdp|testscript|NewSpace|package topo' --include='*_test.go' . | xargs -r -n1 dirname | grep -vx -e '$(RXE)' -e ./bench -e ./packages -e ./nffgo -e ./dpdk | sort -u)
# The guests and what is between them are built by the test: go test cannot know
# when an earlier result still holds. Their timers want whole processors.
RXE     = ./tests/rxe
ALL     = $(shell $(GO) list ./... | sed 's|^$(MODULE)|.|')
PARALLEL = $(filter-out $(SERIAL) $(RXE),$(ALL))
# Packages that try whether tests find small errors in the code.
MUTANTS = $(shell grep -rl 'func TestMutants' --include='*_test.go' . | xargs -r -n1 dirname | sort -u)
# Packages that own buffers: also with freed buffers poisoned (-tags pktdebug).
OWNERS  = $(wildcard nf/graph nf/replay nf/port/mem nf/port/pcap nf/police nf/gobackn nf/hold nf/kvcache nf/replicate snic tor rack/rnic)
# Packages whose code runs on several threads: with the race detector, and so slowly
# that properties are tried less often (-short).
RACE    = $(wildcard nf/graph nf/counter nf/trace nf/turn snic/hop/wire snic/pool/gossip controlplane examples/controller internal/admin internal/metrics)
# Tests of rates: when nothing else runs any more.
RATES   = TestRatesOfTCP

# How long the tests of one package, or a fuzz run, may take; they take seconds.
# What hangs is ended, and a test says where it was.
TIMEOUT = 10m

# One run of go test with arguments $(1), for tally: how it failed is told when
# its tests do not tell. What vet and debuggers want is left out: check vets all.
define RUN
$(GO) test -json -pgo=off -vet=off "-ldflags=-s -w" -timeout $(TIMEOUT) $(1) || echo '{"Action":"exit","Output":"go test $(strip $(1))"}'
endef

# Every fuzz target of the tree, FUZZTIME each, with one binary a package. The fuzzer sometimes reports its own
# deadline as a failure, without a failing input (go.dev/issue/75804): such a run is
# repeated, at last with a number of inputs in place of a time.
define FUZZ
found=$$($(GO) env GOCACHE)/fuzz/$(MODULE); \
grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | xargs -n1 dirname | sort -u | \
while read -r dir; do \
  $(GO) test -c -pgo=off $(GUIDED) "-ldflags=-s -w" -o bin/fuzz.test "$$dir" && targets=$$(bin/fuzz.test -test.list '^Fuzz') || \
    { echo '{"Action":"exit","Output":"building for fuzzing '"$$dir"'"}'; continue; }; \
  for func in $$targets; do \
    for time in $(FUZZTIME) $(FUZZTIME) 1000x; do \
      status=0; \
      out=$$(cd "$$dir" && timeout -k 10 $(TIMEOUT) $(GO) tool test2json -t -p "$(MODULE)/$${dir#./}" "$(CURDIR)/bin/fuzz.test" -test.v=test2json \
        -test.run '^$$' -test.fuzz "^$$func\$$" -test.fuzztime $$time -test.fuzzminimizetime 10x -test.fuzzcachedir "$$found/$${dir#./}" </dev/null) || status=$$?; \
      case $$out in *'Failing input'*) break;; *'context deadline exceeded'*) ;; *) break;; esac; \
    done; \
    printf '%s\n' "$$out"; \
    [ $$status = 0 ] || echo '{"Action":"exit","Output":"fuzzing '"$$func"'"}'; \
  done; \
done
endef

.PHONY: all test vet test-that-computes test-that-waits test-rxe soak check check-arm64 fuzz demo bench profile man lint clean deps

all: bin/quillon

# The commit goes into the binary where git tells it: it does not to root in
# another user's clone.
VCS = $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false)
# A third of a binary is for debuggers: without it (-s -w) stack traces and profiles still name functions and lines. gRPC's pages
# of traces, which nothing here serves, are templates; where there is one the linker keeps every exported method. net/http has an
# HTTP/2 of its own, for TLS: nothing here serves or asks for pages with TLS, and gRPC has another one.
SMALL = -trimpath -tags grpcnotrace,nethttpomithttp2 "-ldflags=-s -w"
# What bin/quillon may have, in bytes.
MOST = 40000000
.PHONY: bin/quillon
bin/quillon:
	$(GO) build $(VCS) $(SMALL) -o $@ ./cmd/quillon
	@size=$$(wc -c <$@); [ $$size -le $(MOST) ] || { echo "$@ has $$size bytes, and may have $(MOST): go version -m $@ says of what"; exit 1; }

test: deps vet bin/quillon
	@$(GO) build -buildvcs=false -o bin/tally ./internal/tally
	@{ $(MAKE) -s -j2 test-that-computes test-that-waits || echo '{"Action":"exit","Output":"make"}'; \
	   cat bin/waits.json; \
	   (cd bench && { $(call RUN,.); }); (cd packages && { $(call RUN,-count=1 .); }); \
	   if pkg-config --exists libdpdk 2>/dev/null; then (cd dpdk && export CGO_ENABLED=1 CGO_CFLAGS_ALLOW='.*' && { $(call RUN,.); }); (cd nffgo && $(GO) build -o ../bin/with ./with && ../bin/with $(call RUN,.)); \
	   else echo 'dpdk and nffgo: left out, DPDK is missing (apt-get install libdpdk-dev libnuma-dev pkg-config gcc)'; fi; \
	   $(call RUN,-count=1 -timeout 20m $(RXE)); \
	   $(call RUN,-run '$(RATES)' ./cmd/quillon); \
	 } 2>&1 | bin/tally

# A world is thrown away after milliseconds: with a larger heap its runs take a third
# less. snic takes minutes: its tests run whole with freed buffers poisoned, and shortened as it ships.
test-that-computes:
	@$(call RUN,-skip TestMutants $(filter-out ./snic,$(PARALLEL)))
	@$(call RUN,-short ./snic)
	@$(call RUN,-timeout 30m -run TestMutants $(MUTANTS))
	@GOGC=400 QUILLON_CROWDS=10 QUILLON_SCHEDULES=$(SCHEDULES) $(call RUN,-timeout 20m -run TestTwins ./tests/swordbox)
	@GOGC=400 QUILLON_SCHEDULES=$$(($(SCHEDULES) / 4)) $(call RUN,-timeout 20m -run TestSchedules ./tests/swordbox)
	@GOGC=400 QUILLON_CROWDS=10 QUILLON_SCHEDULES=$$(($(SCHEDULES) / 10)) $(call RUN,-timeout 20m -run 'TestTwins|TestSchedules|TestLaw' ./tests/bed ./tests/clover)
	@$(call RUN,-tags pktdebug $(addprefix ./,$(addsuffix /...,$(OWNERS))))
	@if echo '#include <stdlib.h>' | gcc -E - >/dev/null 2>&1; then \
	   export CGO_ENABLED=1; $(call RUN,-race -short $(addprefix ./,$(addsuffix /...,$(RACE)))); \
	   $(call RUN,-race -short -run 'TestWorkers$$' ./tests/clio); \
	 else echo 'race detector: left out, gcc or its headers are missing (apt-get install gcc libc6-dev)'; fi
	@$(FUZZ)

# What they say comes at the end: lines of two runs would be mixed.
test-that-waits:
	@($(call RUN,-p 1 -skip '$(RATES)' $(SERIAL))) >bin/waits.json 2>&1

# Ten minutes of each in turns. The seeds are new ones in every run.
HOURS ?=
soak:
	@mkdir -p bin; first=$$(date +%s)000000; end=$$(($$(date +%s) + $(or $(HOURS),1000000) * 3600)); \
	 while [ $$(date +%s) -lt $$end ]; do for p in ./tests/swordbox ./tests/clover; do \
	   left=$$((end - $$(date +%s))); [ $$left -gt 0 ] || break; \
	   QUILLON_CROWDS=8 QUILLON_SOAK=$$((left < 600 ? left : 600))s QUILLON_FIRST=$$first QUILLON_FAILED=$(CURDIR)/bin/soak-failed \
	     $(GO) test -v -count=1 -timeout 0 -run TestSoak $$p; first=$$((first + 100000)); \
	 done; done; [ ! -e bin/soak-failed ]

test-rxe: TIMEOUT = 180m
test-rxe: TOOLS += $(PROGRAMS)
test-rxe: deps
	@$(GO) build -buildvcs=false -o bin/tally ./internal/tally
	@{ $(call RUN,-count=1 $(RXE) -long); (cd packages && { $(call RUN,-count=1 -run TestGuest . -long); }); } 2>&1 | bin/tally

# The race detector, mutants, fuzzing, most worlds and the longest simulations are left to make test: tests that take seconds are shorter with -short.
check: vet
	@$(GO) build -buildvcs=false -o bin/tally ./internal/tally
	@{ $(call RUN,-short -skip TestMutants $(PARALLEL)); } 2>&1 | bin/tally

# Formatting and vet: complaints end the run before the tests.
vet:
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go' 2>/dev/null || find . -name '*.go')); \
	 if [ -n "$$out" ]; then echo "gofmt: run gofmt -w on"; echo "$$out"; exit 1; fi
	@$(GO) vet ./...
	@$(GO) vet -tags pktdebug ./nf/...
	@$(GO) -C bench vet ./...
	@$(GO) -C packages vet ./...

# Under emulation of single programs: what attaches XDP programs, makes namespaces, or
# takes minutes even here is left out; so is what the emulator has not: bpf(2), and programs
# that start themselves or what they built (TestFlood, TestSocket, TestKilled, TestTags); and what has no time for so slow a machine.
check-arm64: export SKIP = TestMutants|TestNoAllocation|TestFlood|TestSocket|TestKilled|TestTags|TestThousandDevices|TestBoxSettings
check-arm64: TOOLS += qemu-aarch64-static:qemu-user-static
check-arm64: deps
	@$(GO) build -buildvcs=false -o bin/tally ./internal/tally
	GOARCH=arm64 $(GO) vet ./...
	@{ export GOARCH=arm64; $(call RUN,-short -timeout 30m -skip $$SKIP -exec qemu-aarch64-static $(filter-out ./tests/% ./internal/sim/% ./internal/xsk ./internal/bench,$(PARALLEL))); } 2>&1 | bin/tally

# What the tests use beyond Go: a program, or a file, and its Debian package.
TOOLS = ip:iproute2 ping:iputils-ping iperf3:iperf3 bridge:iproute2 ethtool:ethtool tshark:tshark setpriv:util-linux unshare:util-linux mount:mount timeout:coreutils \
	gcc:gcc /usr/include/stdlib.h:libc6-dev \
	/usr/include/dpdk/rte_ethdev.h:libdpdk-dev /usr/include/numa.h:libnuma-dev pkg-config:pkg-config \
	chromium:chromium promtool:prometheus etcd:etcd-server /lib/systemd/systemd:systemd qemu-system-x86_64:qemu-system-x86 ib_write_bw:perftest xz:xz-utils \
	/usr/include/infiniband/verbs.h:libibverbs-dev /etc/libibverbs.d/rxe.driver:ibverbs-providers
# What guests run in the long form.
PROGRAMS = busybox:busybox-static rping:rdmacm-utils ucx_perftest:ucx-utils orted:openmpi-bin mpicc:libopenmpi-dev \
	exportfs:nfs-kernel-server iscsid:open-iscsi mmdebstrap:mmdebstrap mke2fs:e2fsprogs depmod:kmod
APT = DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300
deps:
	@missing=; for t in $(TOOLS); do command -v $${t%%:*} >/dev/null || [ -e $${t%%:*} ] || missing="$$missing $${t##*:}"; done; \
	 if [ -z "$$missing" ]; then exit 0; fi; \
	 if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	   echo "missing:$$missing (install them for the tests that would be skipped)"; exit 0; fi; \
	 echo "installing$$missing"; \
	 { $(APT) install -y --no-install-recommends $$missing 2>/dev/null || \
	   { $(APT) update && $(APT) install -y --no-install-recommends $$missing; }; } </dev/null >/dev/null || \
	   echo "could not install$$missing: tests that need them say so"

fuzz: GUIDED = -fuzz=.
fuzz:
	@$(GO) build -buildvcs=false -o bin/tally ./internal/tally
	@{ $(FUZZ); } 2>&1 | bin/tally

# DEMO= arguments of the demo, as in: make demo DEMO="--workload W --plot demo"
DEMO ?= --json bin/demo.json --plot bin/demo
demo: bin/quillon
	bin/quillon demo $(DEMO)

bench: bin/quillon
	bin/quillon bench $(BENCH)

# A module of its own: bench/README.md.
.PHONY: rivals
rivals:
	$(GO) -C bench build $(VCS) -trimpath -o ../bin/rivals .
	$(GO) -C bench test .

# The profile that "go build" optimises quillon for, of benchmarks of its packet
# paths: what to run, and the package. After a change of those paths it is made
# anew, on a machine that does little else. Tests do without it: they would have
# to build everything a second time.
PROFILED = Steer|Swordbox:internal/bench Board|Full:snic Chain:nf/napt Seal|Open:nf/aead Router:nf/p4
profile:
	@rm -rf bin/profile && mkdir -p bin/profile
	@set -e; for x in $(foreach x,$(PROFILED),'$(x)'); do \
	  $(GO) test -pgo=off -trimpath -run '^$$' -bench "$${x%%:*}" -benchtime 2s -o bin/profile/test \
	    -cpuprofile $(CURDIR)/bin/profile/$$(basename "$${x#*:}").prof "./$${x#*:}"; done
	@$(GO) tool pprof -proto -output bin/profile/all.pb.gz bin/profile/*.prof 2>/dev/null >&2
	@$(GO) run ./internal/nopaths <bin/profile/all.pb.gz >bin/profile/default.pgo
	@cp bin/profile/default.pgo cmd/quillon/default.pgo

man: bin/quillon
	bin/quillon man bin/man

# What goes to share/ beside a program: pages, completions, documents.
.PHONY: share install packages
share: bin/quillon
	@rm -rf bin/share && mkdir -p bin/share/bash-completion/completions bin/share/zsh/site-functions bin/share/fish/vendor_completions.d bin/share/doc/quillon/examples bin/share/quillon
	@bin/quillon man bin/share/man/man1 >/dev/null && gzip -9nf bin/share/man/man1/*.1
	@bin/quillon completion bash >bin/share/bash-completion/completions/quillon
	@bin/quillon completion zsh >bin/share/zsh/site-functions/_quillon
	@bin/quillon completion fish >bin/share/fish/vendor_completions.d/quillon.fish
	@bin/quillon metrics rules >bin/share/quillon/quillon.rules.yml && bin/quillon metrics dashboard >bin/share/quillon/dashboard.json
	@cp README.md CHANGELOG.md docs/*.md bin/share/doc/quillon/ && cp LICENSE bin/share/doc/quillon/copyright && cp examples/*.yaml bin/share/doc/quillon/examples/

PREFIX ?= /usr/local
install: share
	install -D -m 755 bin/quillon $(DESTDIR)$(PREFIX)/bin/quillon
	mkdir -p $(DESTDIR)$(PREFIX)/share && cp -R bin/share/. $(DESTDIR)$(PREFIX)/share/
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)/etc/quillon
	sed 's|/usr/bin/quillon|$(PREFIX)/bin/quillon|' packages/quillon@.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/quillon@.service

# The version is that of git; a module of its own, since it needs what quillon does not.
VERSION ?= $(or $(shell git describe --tags --dirty 2>/dev/null),$(shell git describe --always --dirty 2>/dev/null),unknown)
EPOCH   ?= $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),0)
packages: share
	@mkdir -p bin/packages && for a in amd64 arm64; do GOARCH=$$a $(GO) build $(VCS) $(SMALL) -o bin/packages/quillon-$$a ./cmd/quillon || exit; done
	$(GO) -C packages run . -version $(VERSION) -time $(EPOCH) -out ../bin/packages -share ../bin/share ../bin/packages/quillon-amd64 ../bin/packages/quillon-arm64

lint:
	@command -v golangci-lint >/dev/null || { echo 'golangci-lint is missing: https://golangci-lint.run'; exit 2; }
	golangci-lint run

clean:
	rm -rf bin
