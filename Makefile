# Rivulet. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

export GOFLAGS ?= -buildvcs=false
GO       ?= go
BIN      := bin
# Of the tag, or between the last one and the next; of a draft with DRAFT=1.
VERSION  ?= $(shell DRAFT='$(DRAFT)' image/release/version)
# The commit's time, not this moment: the same commit makes the same binary. (This
# moment only where that lies ahead: no clock here could be right by that binary.)
BUILD_TIME ?= $(shell t=$$(git log -1 --format=%ct 2>/dev/null); n=$$(date +%s); echo $$(( $${t:-0} < n ? $${t:-0} : n )))

# What k3s is built with: no docker, no cloud providers, SQLite without loadable extensions.
TAGS     := ctrd netgo osusergo providerless urfave_cli_no_docs sqlite_omit_load_extension static_build no_cri_dockerd no_zfs

# A C library chooses some functions at start. In a program that is larger than a Thumb
# branch reaches GNU ld forgets that those are Thumb code, and it crashes before main:
# on 32-bit ARM they are chosen here, those that every ARMv7 can run.
arm_fixed := -Wl,--defsym=memcpy=__memcpy_vfp,--defsym=memchr=__memchr_noneon

# k3s and containerd do not know their own versions when they are built as libraries.
replaced  = $(shell awk '$$1=="$(1)" && $$2=="=>" {print $$4}' go.mod)
LDFLAGS   = -s -w -extldflags '-static$(if $(filter arm,$(GOARCH)), $(arm_fixed))' \
	-X rivulet/appliance/version.Version=$(VERSION) \
	-X rivulet/appliance/version.LinkedKubernetes=$(call replaced,k8s.io/kubernetes) \
	-X rivulet/appliance/version.BuildTime=$(BUILD_TIME) \
	-X rivulet/image/signed.rootKeys=$(ROOT_KEYS) \
	-X rivulet/image/signed.minGeneration=$(MIN_GENERATION) \
	-X github.com/k3s-io/k3s/pkg/version.Version=$(call replaced,k8s.io/kubernetes) \
	-X github.com/containerd/containerd/v2/version.Version=$(call replaced,github.com/containerd/containerd/v2)

# Public keys, separated by commas, of those whose releases `rivulet upgrade` takes, and the lowest generation
# of a signing key; without a key it takes none. See docs/design/keys.md.
ROOT_KEYS      ?= $(shell awk '$$1 == "root" {printf "%s%s", comma, $$2; comma = ","}' image/signed/roots)
MIN_GENERATION ?= $(shell awk '$$1 == "generation" {print $$2}' image/signed/roots)

# Where releases are published, without a slash at the end: install.sh lies in it. Nothing is published while it is
# empty. The README and the quick start write RELEASES for it; a test in test/arch compares them.
RELEASES ?=

# The mail address of those who read reports that must not be public (a vulnerability, a breach of CODE_OF_CONDUCT.md), and of
# the packages' maintainer. The pages write CONTACT for it, likewise. No release is made while one of the two is empty.
CONTACT ?=

# With ARCH (amd64, arm64 or armv7): what is released, into bin/ARCH, the same bytes
# on every machine. Without: for this machine, sooner. See docs/design/release.md.
ARCHES := amd64 arm64 armv7
OUT    := $(BIN)
ifdef ARCH
GOARCH  := $(or $(if $(filter $(ARCH),$(ARCHES)),$(patsubst armv7,arm,$(ARCH))),$(error ARCH is one of $(ARCHES), not $(ARCH)))
OUT     := $(BIN)/$(ARCH)
LDFLAGS += -buildid=
target   = GOOS=linux GOARCH=$(GOARCH) GOARM=7 CC=$(BUNDLE_CC)
trimpath = -trimpath
endif

# A folder is out of date when any Go file in it is newer; Go's own cache does the rest.
gofiles   = $(shell find $(1) -name '*.go' -not -path '*/testdata/*' 2>/dev/null)

include image/bundle/bundle.mk
include image/licenses/licenses.mk
include image/package/package.mk
include image/sources/sources.mk
include image/release/release.mk
include image/device/device.mk
include test/programs/conformance/conformance.mk

mcs_tools := /bin/sh /usr/bin/socat /usr/bin/nc /usr/bin/nslookup /usr/bin/grep /usr/bin/awk /usr/bin/tr /usr/bin/head /usr/bin/tail

.PHONY: test-mcs
test-mcs: ## the conformance tests of the Multi-Cluster Services API, on two devices (MCS_API=checkout of kubernetes-sigs/mcs-api, FOCUS=)
	@test -f '$(MCS_API)/conformance/go.mod' || { echo 'test-mcs: the tests are no published module; get them: git clone https://github.com/kubernetes-sigs/mcs-api DIR, and: make test-mcs MCS_API=DIR' >&2; exit 2; }
	@test/deps mcs
	@$(MAKE) --no-print-directory build
	@cd '$(MCS_API)/conformance' && GOFLAGS=-mod=mod $(GO) test -c -o $(CURDIR)/$(BIN)/mcs.test .
	@$(GO) run ./test/programs/mkimage -tag docker.io/alpine/socat:1.7.4.4 -user 0:0 -o $(BIN)/mcs-socat.tar $(mcs_tools)
	@$(GO) run ./test/programs/mkimage -tag docker.io/nicolaka/netshoot:v0.15 -user 0:0 -o $(BIN)/mcs-netshoot.tar $(mcs_tools)
	@$(GO) build -tags "$(TAGS)" -o $(BIN)/mcs ./test/programs/mcs
	@$(SUDO) env "PATH=$$PATH" $(BIN)/mcs -rivulet $(BIN)/rivulet -dir /var/lib/rivulet-mcs -suite $(CURDIR)/$(BIN)/mcs.test -images $(BIN)/mcs-socat.tar,$(BIN)/mcs-netshoot.tar $(if $(FOCUS),-focus '$(FOCUS)')

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9 -]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install the Debian packages that building (for ARCH) and the lab need; the other targets do it too
	@ARCH=$(ARCH) test/deps

.PHONY: build
build: ## build bin/rivulet and bin/rivulet-lab, or with ARCH bin/ARCH/rivulet
	@image/progress build$(addprefix -,$(ARCH)) $(MAKE) --no-print-directory $(OUT)/rivulet $(if $(ARCH),,$(BIN)/rivulet-lab)

# What is linked in beside the code. The file changes only when that does.
.PHONY: linked
$(OUT)/rivulet.linked: linked
	@mkdir -p $(OUT)
	@now='$(VERSION) $(BUILD_TIME) $(ROOT_KEYS) $(MIN_GENERATION)'; [ "$$now" = "$$(cat $@ 2>/dev/null)" ] || echo "$$now" >$@

$(OUT)/rivulet: $(OUT)/rivulet.linked go.mod go.sum Makefile $(BUNDLE) $(LICENSES) $(call gofiles,cmd/rivulet appliance docs fabric offload image systemd) $(wildcard docs/*.md docs/*/*.md)
	@echo "building $@ (the first time about a quarter of an hour on two cores)"
	@mkdir -p $(OUT)
	@CGO_ENABLED=1 $(target) $(GO) build $(trimpath) -tags "$(TAGS) bundle" -ldflags "$(LDFLAGS)" -o $@ ./cmd/rivulet 2> >(grep -v 'dlopen\|pluginOpen\|plugin_dlopen\|^# rivulet/cmd' >&2)

$(BIN)/rivulet-lab: go.mod go.sum $(call gofiles,cmd/rivulet-lab test/harness/lab)
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -o $@ ./cmd/rivulet-lab

# For the loop of edit, build, try: the supervisor of this tree with the engine of
# FULL, a bin/rivulet that was built earlier, here or elsewhere.
FULL ?= $(BIN)/rivulet
.PHONY: slim
slim: $(BUNDLE) $(LICENSES) $(BIN)/demo-web.tar ## build bin/slim/rivulet in seconds, with the engine of a bin/rivulet built earlier (FULL=)
	@mkdir -p $(BIN)/slim
	@CGO_ENABLED=1 $(GO) build -tags "$(TAGS) bundle" -ldflags "$(LDFLAGS)" -o $(BIN)/slim/rivulet ./test/programs/slim
	@cmp -s $(FULL) $(BIN)/slim/rivulet-full || cp -f $(FULL) $(BIN)/slim/rivulet-full
	@cp -f $(BIN)/demo-web.tar $(BIN)/slim/

# The image that the demo and the tests run: the web application and busybox.
$(BIN)/demo-web.tar: $(call gofiles,test/programs/web test/programs/mkimage image/oci) go.mod
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/web ./test/programs/web
	@$(GO) run ./test/programs/mkimage -tag rivulet.dev/demo-web:1 -web $(BIN)/web -o $@

# The program of a session of examples/exam.
$(BIN)/exam-session.tar: $(call gofiles,examples/exam/session test/programs/mkimage image/oci) go.mod
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/exam-session ./examples/exam/session
	@$(GO) run ./test/programs/mkimage -tag rivulet.dev/exam-session:1 -web $(BIN)/exam-session -o $@

# The controller of test/suites/ingress: Traefik's, which has a module of its own there.
$(BIN)/ingress.tar: $(call gofiles,test/suites/ingress/traefik test/programs/mkimage image/oci) test/suites/ingress/traefik/go.mod
	@mkdir -p $(BIN)
	@cd test/suites/ingress/traefik && CGO_ENABLED=0 $(GO) build -o $(CURDIR)/$(BIN)/traefik .
	@$(GO) run ./test/programs/mkimage -tag rivulet.dev/ingress:1 -web $(BIN)/traefik -o $@

# The member of test/suites/gossip: HashiCorp's memberlist, which has a module of its own there.
$(BIN)/gossip.tar: $(call gofiles,test/suites/gossip/member test/programs/mkimage image/oci) test/suites/gossip/member/go.mod
	@mkdir -p $(BIN)
	@cd test/suites/gossip/member && CGO_ENABLED=0 $(GO) build -o $(CURDIR)/$(BIN)/member .
	@$(GO) run ./test/programs/mkimage -tag rivulet.dev/gossip:1 -web $(BIN)/member -o $@

# PostgreSQL and MariaDB of Debian, for test/suites/datastore and the unit tests of appliance/engine/datastore.
.PHONY: sql-servers
sql-servers:
	@test/deps databases

# etcd and PostgreSQL of Debian, for test/suites/gossip: the programs and what they are linked to.
postgres := /usr/lib/postgresql/15
$(BIN)/databases.tar: $(call gofiles,test/programs/mkimage image/oci) go.mod test/deps
	@mkdir -p $(BIN)
	@test/deps databases
	@$(GO) run ./test/programs/mkimage -tag rivulet.dev/databases:1 -user nobody -o $@ /usr/bin/etcd /usr/bin/etcdctl \
		$(addprefix $(postgres)/bin/,initdb pg_basebackup pg_isready postgres psql) $(postgres)/lib/dict_snowball.so $(postgres)/lib/libpqwalreceiver.so $(postgres)/lib/plpgsql.so \
		/usr/share/postgresql/15 /usr/share/zoneinfo/Etc /etc/passwd

# What examples/shop runs: its program, which has a module of its own there, and Debian's Redis and PostgreSQL as its stores.
.PHONY: shop
shop: $(BIN)/shop.tar $(BIN)/shop-stores.tar ## the images of examples/shop, into bin, for rivulet image push
$(BIN)/shop: $(wildcard examples/shop/*.go) examples/shop/go.mod
	@mkdir -p $(BIN)
	@cd examples/shop && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(CURDIR)/$(BIN)/shop .
$(BIN)/shop.tar: $(BIN)/shop $(call gofiles,test/programs/mkimage image/oci)
	@$(GO) run ./test/programs/mkimage -tag rivulet.dev/shop:1 -web $(BIN)/shop -o $@
$(BIN)/shop-stores.tar: $(call gofiles,test/programs/mkimage image/oci) go.mod test/deps
	@mkdir -p $(BIN)
	@test/deps shop
	@$(GO) run ./test/programs/mkimage -tag rivulet.dev/shop-stores:1 -user 65534:65534 -o $@ /usr/bin/redis-server /usr/bin/rm \
		$(addprefix $(postgres)/bin/,initdb pg_isready postgres psql) $(postgres)/lib/dict_snowball.so $(postgres)/lib/plpgsql.so \
		/usr/share/postgresql/15 /usr/share/zoneinfo/Etc /etc/passwd

# docker load -i bin/gateway/gateway-amd64.tar, or skopeo copy oci:bin/gateway/oci docker://…
.PHONY: oci
oci: $(addprefix _build/gateway/,amd64 arm64 arm) $(LICENSES) ## the gateway pod's image for a registry, into bin/gateway (docs/design/burst-network.md)
	@$(GO) run ./image/gateway -in _build/gateway -licenses $(LICENSES) -version $(VERSION) -tag rivulet.dev/gateway:1 -out $(BIN)/gateway amd64 arm64 arm
	@echo "$(BIN)/gateway: gateway-ARCH.tar for docker load, oci for skopeo copy oci:$(BIN)/gateway/oci docker://REGISTRY/NAME:TAG"

.PHONY: demo
demo: deps ## three devices on this machine play the main job (WITH=docker,ufw or all: what other software does there, docs/design/lab.md)
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@if [ -e "$${RIVULET_LAB:-/var/lib/rivulet-lab}/lab.json" ]; then echo "removing the lab that is there already"; $(SUDO) $(BIN)/rivulet-lab down; fi
	$(SUDO) $(BIN)/rivulet-lab up --devices 3 --wait peered --env RIVULET_RESERVE_CPU=$(RESERVE_CPU)$(if $(WITH), --with $(WITH))
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/suites/demo
	@$(SUDO) $(BIN)/demo

.PHONY: demo-burst
demo-burst: deps ## home, a neighbour and a campus that runs no Rivulet: home full, neighbour full, campus
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@if [ -e "$${RIVULET_LAB:-/var/lib/rivulet-lab}/lab.json" ]; then echo "removing the lab that is there already"; $(SUDO) $(BIN)/rivulet-lab down; fi
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/suites/demo
	@$(SUDO) $(BIN)/demo -burst -dir "$${RIVULET_LAB:-/var/lib/rivulet-lab}"

.PHONY: demo-course
demo-course: deps ## thirty students on three devices, from the course's file to its end (RIVULET_DEMO_STUDENTS=6: fewer)
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@if [ -e "$${RIVULET_LAB:-/var/lib/rivulet-lab}/lab.json" ]; then echo "removing the lab that is there already"; $(SUDO) $(BIN)/rivulet-lab down; fi
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/suites/demo
	@$(SUDO) $(BIN)/demo -course -students $(or $(RIVULET_DEMO_STUDENTS),30) -dir "$${RIVULET_LAB:-/var/lib/rivulet-lab}"

.PHONY: demo-shelf
demo-shelf: deps ## a cluster of three devices and a peer: joins, a Deployment over all nodes, power cuts of server and worker, a removal
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@if [ -e "$${RIVULET_LAB:-/var/lib/rivulet-lab}/lab.json" ]; then echo "removing the lab that is there already"; $(SUDO) $(BIN)/rivulet-lab down; fi
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/suites/demo
	@$(SUDO) $(BIN)/demo -shelf -dir "$${RIVULET_LAB:-/var/lib/rivulet-lab}"

EXAM ?= numbers real
.PHONY: demo-exam
demo-exam: deps ## an exam: 200 sessions on hollow nodes of five clusters, then 20 on real devices and a campus (EXAM=real, EXAM=numbers: one of both)
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar $(BIN)/exam-session.tar
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/suites/demo
	@for part in $(EXAM); do \
		if [ -e "$${RIVULET_LAB:-/var/lib/rivulet-lab}/lab.json" ]; then echo "removing the lab that is there already"; $(SUDO) $(BIN)/rivulet-lab down || exit 1; fi; \
		$(SUDO) $(BIN)/demo -exam $$part -dir "$${RIVULET_LAB:-/var/lib/rivulet-lab}" || exit 1; \
	done

.PHONY: demo-pilot
demo-pilot: deps ## a shop of sixteen pods on three clusters, and what users notice of a drain, a cut, a killed gateway, a device switched off
	@test/deps prometheus
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar shop
	@if [ -e "$${RIVULET_LAB:-/var/lib/rivulet-lab}/lab.json" ]; then echo "removing the lab that is there already"; $(SUDO) $(BIN)/rivulet-lab down; fi
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/suites/demo
	@$(SUDO) $(BIN)/demo -pilot -dir "$${RIVULET_LAB:-/var/lib/rivulet-lab}"

.PHONY: demo-down demo-burst-down demo-course-down demo-shelf-down demo-exam-down demo-pilot-down
demo-burst-down demo-course-down demo-shelf-down demo-exam-down demo-pilot-down: demo-down
demo-down: ## end the demo and remove all of it
	$(SUDO) $(BIN)/rivulet-lab down

# Each device of the lab sees all of this machine's CPUs; what is over half a core
# is kept from pods, so that the demo's application does not fit on one.
RESERVE_CPU = $(shell echo $$(( $$(nproc) * 1000 - 500 )))m
SUDO       := $(if $(filter 0,$(shell id -u)),,sudo)

# make test fails where a page is not what the code says.
.PHONY: docs
docs: ## write docs/reference anew from the code
	$(GO) test -tags "$(TAGS)" -count=1 -run TestReferenceOf ./test/arch ./cmd/rivulet/cli ./appliance/config ./appliance/diagnose/prometheus -args -update

.PHONY: dashboards
dashboards: ## write docs/monitoring (dashboards, alerts) and docs/reference/alerts.md anew from test/programs/dashboards
	@cd test/programs/dashboards && CGO_ENABLED=0 $(GO) run . -docs $(CURDIR)/docs

# What imports k3s takes minutes to vet, to lint and to test, for all of Kubernetes: the build checks those few files.
light = $$($(GO) list $(1) | grep -v -e /engine/k3s$$ -e /cmd/rivulet$$)

.PHONY: check
check: lint ## gofmt, lint, the rules of the tree, unit tests: before each commit, without root, minutes
	$(GO) test -short -tags "$(TAGS)" ./test/arch ./test/programs/check $$($(GO) list ./... | grep -v -e /engine/k3s$$ -e /cmd/rivulet$$ -e /test/)
	cd examples/shop && $(GO) test ./...

# Pinned in a module of its own, so that its dependencies are not the product's.
golangci := $(CURDIR)/_build/golangci-lint
$(golangci): test/programs/lint/go.mod test/programs/lint/go.sum
	@mkdir -p $(@D)
	@cd test/programs/lint && CGO_ENABLED=0 $(GO) build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: lint
lint: $(golangci) ## gofmt, and golangci-lint by .golangci.yml (its first build takes minutes)
	@bad=$$(git ls-files -z '*.go' | xargs -0 ls -d 2>/dev/null | xargs gofmt -l); [ -z "$$bad" ] || { echo "run gofmt -w on: $$bad"; exit 1; }
	@$(golangci) run --build-tags "$(TAGS)" $$($(GO) list -f '{{.Dir}}' $(call light,./...))

environment = $(SUDO) env "PATH=$$PATH" $(if $(LONG),RIVULET_LONG=1) RIVULET_BIN=$(CURDIR)/$(BIN)/rivulet
go_test     = $(environment) $(GO) test -tags "$(TAGS)" -timeout 45m

# What runs tests and tells of them in a table: docs/design/check.md.
gotestsum := $(CURDIR)/_build/gotestsum
$(gotestsum): test/programs/rerun/go.mod test/programs/rerun/go.sum
	@mkdir -p $(@D)
	@cd test/programs/rerun && CGO_ENABLED=0 $(GO) build -o $@ gotest.tools/gotestsum

CHECK := _build/check
.PHONY: $(CHECK)
$(CHECK): $(gotestsum)
	@CGO_ENABLED=0 $(GO) build -o $@ ./test/programs/check
checked = $(environment) $(if $(RIVULET_MUST),RIVULET_MUST=1) $(CHECK) -tags "$(TAGS)"

.PHONY: test-binaries
test-binaries: deps $(CHECK)
	@test/deps test
	@$(CHECK) time build $(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@$(MAKE) --no-print-directory $(BIN)/engine $(package_nfpm)

# What tests start as an API server: bin/rivulet as it was when go.mod or the engine changed last. Go keeps the
# results of tests whose files are the same, so that a change elsewhere does not run all of them again.
.PHONY: $(BIN)/engine
$(BIN)/engine:
	@sum=$$(cat go.mod go.sum $$(find appliance/engine appliance/addons/resourcemetrics -name '*.go' -not -name '*_test.go' | sort) | sha256sum); \
	if [ "$$sum" != "$$(cat $@.sum 2>/dev/null)" ] || [ ! -x $@ ]; then rm -f $@ && cp --reflink=auto $(BIN)/rivulet $@ && echo "$$sum" >$@.sum; fi

.PHONY: test
test: test-binaries ## unit and property tests (with goroutines: under the race detector), and the main job on devices
	@$(checked) test

.PHONY: race
race: test-binaries ## of make test what runs under Go's race detector
	@$(checked) test race

# One lab or more each, minutes: which guard what is in test/suites.yaml.
SUITE ?= $(shell sed -n 's/^  - name: //p' test/suites.yaml)
.PHONY: test-devices
test-devices: deps ## suites on devices by hand, all or SUITE="ops power", of each the tests RUN=; LONG=1: those of an hour too
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar $(if $(filter gossip,$(SUITE)),$(BIN)/gossip.tar) $(if $(filter ingress,$(SUITE)),$(BIN)/ingress.tar) $(if $(filter demo,$(SUITE)),$(BIN)/exam-session.tar shop) $(if $(filter ops power,$(SUITE)),ops-binaries) $(if $(filter systemd,$(SUITE)),package-test)
	$(go_test) $(if $(LONG),-timeout 90m) -p 1 $(if $(filter file,$(origin SUITE)),,-count=1 -v) $(if $(RUN),-run '$(RUN)') $(patsubst %,./test/suites/%,$(SUITE))

.PHONY: test-changed
test-changed: test-binaries ## the device suites that guard what changed since BASE=REV (UNTIL=: seconds since 1970, by which all end)
	@$(checked) $(if $(BASE),-base '$(BASE)') $(if $(UNTIL),-until $(UNTIL)) changed$(if $(UNTIL), || [ $$? -eq 3 ]) # what had no time is in the table

.PHONY: test-all
test-all: test-binaries ## all device suites (hours), and the page of them, docs/reference/suites.md; or SUITE=
	@$(checked) all $(if $(filter file,$(origin SUITE)),,$(SUITE))

# A module of its own, as the linter's.
vulns := $(CURDIR)/_build/vulns
.PHONY: $(vulns)
$(vulns):
	@mkdir -p $(@D)
	@cd test/programs/vulns && CGO_ENABLED=0 $(GO) build -o $@ .

.PHONY: vulns
vulns: $(vulns) ## known faults of what is linked, but for those that were read (docs/design/dependencies.md); DB=URL of another database
	@$(vulns) -tags "$(TAGS)" $(if $(DB),-db '$(DB)') ./cmd/... || [ $$? -eq 3 ]

.PHONY: check-all
check-all: lint vulns vet-arm test test-all test-sources lint-packages ## all that a release needs, but for images: hours

# What test/suites/ops and power upgrade from and to: the supervisor of this tree twice, trusting
# the key of the test, with the engine of bin/rivulet.
OPS_KEY := iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=
OPS_TRUST := ROOT_KEYS=$(OPS_KEY) MIN_GENERATION=1
.PHONY: ops-binaries
ops-binaries: $(BUNDLE) $(LICENSES)
	@$(MAKE) --no-print-directory slim VERSION=v1.0.0 $(OPS_TRUST) BIN=$(BIN)/ops/v1 FULL=$(FULL)
	@mkdir -p $(BIN)/ops/v2
	@$(MAKE) --no-print-directory $(BIN)/ops/v2/rivulet VERSION=v2.0.0 $(OPS_TRUST)

.PHONY: $(BIN)/ops/v2/rivulet
$(BIN)/ops/v2/rivulet:
	@CGO_ENABLED=1 $(GO) build -tags "$(TAGS) bundle" -ldflags "$(LDFLAGS)" -o $@ ./test/programs/slim

.PHONY: bench
bench: deps ## all figures of bench/ anew (45 minutes; keep the machine quiet), or shown on the terminal ONLY=board,tunnel
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/bench ./test/programs/bench
	$(SUDO) $(BIN)/bench -commit $(or $(shell git describe --always --abbrev=12 --dirty --exclude '*' 2>/dev/null),unknown) $(if $(ONLY),-only $(ONLY))
	$(if $(ONLY),,$(SUDO) env "PATH=$$PATH" RIVULET_TEST_IDLE=1 $(GO) test -count=1 -tags "$(TAGS)" -run '^TestIdlePeers$$' ./test/programs/bench/internal/fakepeer)

.PHONY: bench-gate
bench-gate: deps ## a bench of five minutes: which ratios got worse than those of bench/gate.json by more than noise (WRITE=1 writes that file)
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/bench ./test/programs/bench
	$(SUDO) $(BIN)/bench -commit $(or $(shell git describe --always --abbrev=12 --dirty --exclude '*' 2>/dev/null),unknown) -gate bench/gate.json $(if $(WRITE),-write)

.PHONY: clean
clean: ## remove what was built (Go's caches stay)
	rm -rf $(BIN) _build image/bundle/bundle_*.tar.zst image/bundle/bundle_*.json $(LICENSES)

.PHONY: mutants mutants-cores
mutants: test-binaries ## faults made on purpose in a copy of the last commit, each of which a test has to notice (half an hour; ONLY=peer)
	@$(environment) $(GO) run ./test/programs/mutants -tags "$(TAGS)" $(if $(ONLY),-only '$(ONLY)')
mutants-cores: ## N=200 operators of the pure packages made wrong, by SEED=, one at a time: their own tests have to notice (ONLY=fabric)
	@$(GO) run ./test/programs/mutants -tags "$(TAGS)" -cores $(or $(N),200) $(if $(SEED),-seed $(SEED)) $(if $(ONLY),-only '$(ONLY)')

# Each fuzz target for TIME, one after the other; what it finds is in testdata/fuzz of its package, and stays as a test.
TIME ?= 60s
.PHONY: fuzz
fuzz: ## each fuzz target for TIME=60s (PACKAGES=./fabric/...)
	@red=0; for file in $$(git grep -l '^func Fuzz' -- $(if $(PACKAGES),$(patsubst %/...,%,$(PACKAGES)),'*_test.go')); do \
		for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
			echo "$$(dirname $$file) $$name"; $(GO) test -tags "$(TAGS)" -run '^$$' -fuzz "^$$name$$" -fuzztime $(TIME) ./$$(dirname $$file) || red=1; \
		done; \
	done; exit $$red
