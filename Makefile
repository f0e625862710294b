# Rivulet. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

export GOFLAGS ?= -buildvcs=false
GO       ?= go
BIN      := bin
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# The commit's time, not this moment: the same commit makes the same binary. (This
# moment only where that lies ahead: no clock here could be right by that binary.)
BUILD_TIME ?= $(shell t=$$(git log -1 --format=%ct 2>/dev/null); n=$$(date +%s); echo $$(( $${t:-0} < n ? $${t:-0} : n )))

# What k3s is built with: no docker, no cloud providers, SQLite without loadable extensions.
TAGS     := ctrd netgo osusergo providerless urfave_cli_no_docs sqlite_omit_load_extension static_build

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
	-X github.com/k3s-io/k3s/pkg/version.Version=$(call replaced,k8s.io/kubernetes) \
	-X github.com/containerd/containerd/v2/version.Version=$(call replaced,github.com/containerd/containerd/v2)

# Public keys, separated by commas, of those whose releases `rivulet upgrade` takes;
# without any it takes none. See docs/upgrade.md.
ROOT_KEYS ?=

# With ARCH (amd64, arm64 or armv7): what is released, into bin/ARCH, the same bytes
# on every machine. Without: for this machine, sooner. See docs/release.md.
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
include image/release/release.mk
include image/device/device.mk

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z -]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install the Debian packages that building (for ARCH) and the lab need
	@ARCH=$(ARCH) test/deps

.PHONY: build
build: $(OUT)/rivulet $(if $(ARCH),,$(BIN)/rivulet-lab) ## build bin/rivulet and bin/rivulet-lab, or with ARCH bin/ARCH/rivulet

$(OUT)/rivulet: go.mod go.sum Makefile $(BUNDLE) $(call gofiles,cmd/rivulet appliance fabric offload image systemd)
	@echo "building $@ (the first time takes about a quarter of an hour on two cores)"
	@mkdir -p $(OUT)
	@CGO_ENABLED=1 $(target) $(GO) build $(trimpath) -tags "$(TAGS) bundle" -ldflags "$(LDFLAGS)" -o $@ ./cmd/rivulet 2> >(grep -v 'dlopen\|pluginOpen\|plugin_dlopen\|^# rivulet/cmd' >&2)

$(BIN)/rivulet-lab: go.mod go.sum $(call gofiles,cmd/rivulet-lab test/lab)
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -o $@ ./cmd/rivulet-lab

# For the loop of edit, build, try: the supervisor of this tree with the engine of
# FULL, a bin/rivulet that was built earlier, here or elsewhere.
FULL ?= $(BIN)/rivulet
.PHONY: slim
slim: $(BUNDLE) $(BIN)/demo-web.tar ## build bin/slim/rivulet in seconds, with the engine of a bin/rivulet built earlier (FULL=)
	@mkdir -p $(BIN)/slim
	@CGO_ENABLED=1 $(GO) build -tags "$(TAGS) bundle" -ldflags "$(LDFLAGS)" -o $(BIN)/slim/rivulet ./test/slim
	@cmp -s $(FULL) $(BIN)/slim/rivulet-full || cp -f $(FULL) $(BIN)/slim/rivulet-full
	@cp -f $(BIN)/demo-web.tar $(BIN)/slim/

# The image that the demo and the tests run: the web application and busybox.
$(BIN)/demo-web.tar: $(call gofiles,test/web test/mkimage image/oci) go.mod
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/web ./test/web
	@$(GO) run ./test/mkimage -tag rivulet.dev/demo-web:1 -web $(BIN)/web -o $@

# The controller of test/ingress: Traefik's, which has a module of its own there.
$(BIN)/ingress.tar: $(call gofiles,test/ingress/traefik test/mkimage image/oci) test/ingress/traefik/go.mod
	@mkdir -p $(BIN)
	@cd test/ingress/traefik && CGO_ENABLED=0 $(GO) build -o $(CURDIR)/$(BIN)/traefik .
	@$(GO) run ./test/mkimage -tag rivulet.dev/ingress:1 -web $(BIN)/traefik -o $@

# docker load -i bin/gateway/gateway-amd64.tar, or skopeo copy oci:bin/gateway/oci docker://…
.PHONY: oci
oci: $(addprefix _build/gateway/,amd64 arm64 arm) ## the gateway pod's image for a registry, into bin/gateway (docs/burst-network.md)
	@$(GO) run ./image/gateway -in _build/gateway -tag rivulet.dev/gateway:1 -out $(BIN)/gateway amd64 arm64 arm
	@echo "$(BIN)/gateway: gateway-ARCH.tar for docker load, oci for skopeo copy oci:$(BIN)/gateway/oci docker://REGISTRY/NAME:TAG"

.PHONY: demo
demo: deps ## three devices on this machine play the main job
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@if [ -e "$${RIVULET_LAB:-/var/lib/rivulet-lab}/lab.json" ]; then echo "removing the lab that is there already"; $(SUDO) $(BIN)/rivulet-lab down; fi
	$(SUDO) $(BIN)/rivulet-lab up --devices 3 --wait peered --env RIVULET_RESERVE_CPU=$(RESERVE_CPU)
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/demo
	@$(SUDO) $(BIN)/demo

.PHONY: demo-burst
demo-burst: deps ## home, a neighbour and a campus that runs no Rivulet: home full, neighbour full, campus
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@if [ -e "$${RIVULET_LAB:-/var/lib/rivulet-lab}/lab.json" ]; then echo "removing the lab that is there already"; $(SUDO) $(BIN)/rivulet-lab down; fi
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/demo
	@$(SUDO) $(BIN)/demo -burst -dir "$${RIVULET_LAB:-/var/lib/rivulet-lab}"

.PHONY: demo-down demo-burst-down
demo-down demo-burst-down: ## end the demo and remove all of it
	$(SUDO) $(BIN)/rivulet-lab down

# Each device of the lab sees all of this machine's CPUs; what is over half a core
# is kept from pods, so that the demo's application does not fit on one.
RESERVE_CPU = $(shell echo $$(( $$(nproc) * 1000 - 500 )))m
SUDO       := $(if $(filter 0,$(shell id -u)),,sudo)

# Vetting what imports k3s means vetting all of k3s for facts: minutes for two files that the build checks.
.PHONY: test
test: deps ## vet, unit, property and lab tests; the longer ones: make test-devices
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	$(GO) vet -tags "$(TAGS)" $$($(GO) list ./... | grep -v -e /engine/k3s$$ -e /cmd/rivulet$$)
	@$(MAKE) --no-print-directory vet-arm
	@$(go_test) -p 2 $$($(GO) list ./... | grep -v $(patsubst %,-e /test/%$$,$(DEVICE_SUITES) $(LAB_SUITES))); others=$$?; \
	$(go_test) -p 1 $(patsubst %,./test/%,$(LAB_SUITES)) && exit $$others

# Packages wait for engines and timers more than they compute: two at a time take little
# more than half. Labs have the machine for themselves.
go_test     = $(SUDO) env "PATH=$$PATH" RIVULET_BIN=$(CURDIR)/$(BIN)/rivulet $(GO) test -tags "$(TAGS)" -timeout 25m
LAB_SUITES := badinput e2e lab

# One lab or more each, a minute or three: apart, so that make test stays below half an hour.
DEVICE_SUITES := addons burst burstnet config demo doctor ingress ops partition paths peering peers power shelf small systemd volumes
.PHONY: test-devices
test-devices: deps ## the appliance on devices: settings, storage, power cuts, upgrades, systemd, clocks and cables
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar $(BIN)/ingress.tar ops-binaries
	$(go_test) -p 1 $(patsubst %,./test/%,$(DEVICE_SUITES))

.PHONY: test-burst
test-burst: deps ## a burst on devices, to the pinned k3s started bare
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	$(go_test) ./test/burst

# What test/ops upgrades from and to: the supervisor of this tree twice, trusting
# the key of the test, with the engine of bin/rivulet.
OPS_KEY := iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=
.PHONY: ops-binaries
ops-binaries: $(BUNDLE)
	@$(MAKE) --no-print-directory slim VERSION=v1.0.0 ROOT_KEYS=$(OPS_KEY) BIN=$(BIN)/ops/v1 FULL=$(FULL)
	@mkdir -p $(BIN)/ops/v2
	@$(MAKE) --no-print-directory $(BIN)/ops/v2/rivulet VERSION=v2.0.0 ROOT_KEYS=$(OPS_KEY)

.PHONY: $(BIN)/ops/v2/rivulet
$(BIN)/ops/v2/rivulet:
	@CGO_ENABLED=1 $(GO) build -tags "$(TAGS) bundle" -ldflags "$(LDFLAGS)" -o $@ ./test/slim

.PHONY: test-ops
test-ops: deps ops-binaries ## upgrades that go wrong in every way, power cuts in the middle of them (minutes)
	$(SUDO) env "PATH=$$PATH" OPS_ALL=1 $(GO) test -tags "$(TAGS)" -timeout 40m -count=1 ./test/ops

.PHONY: test-power
test-power: deps ## 200 power cuts under load (about forty minutes)
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	$(SUDO) env "PATH=$$PATH" RIVULET_POWER_CYCLES=200 RIVULET_BIN=$(CURDIR)/$(BIN)/rivulet $(GO) test -count=1 -timeout 90m -v ./test/power

.PHONY: test-dead-node
test-dead-node: deps ## a node whose kubelet is silent is given up after two minutes (three minutes)
	@$(MAKE) --no-print-directory build
	$(SUDO) env "PATH=$$PATH" RIVULET_LONG=1 RIVULET_BIN=$(CURDIR)/$(BIN)/rivulet $(GO) test -count=1 -run TestDeadNode ./test/small

.PHONY: test-paths
test-paths: deps ## three devices, two behind routers of their own: NAT, relay, streams, moves (two minutes)
	@$(MAKE) --no-print-directory build
	$(SUDO) env "PATH=$$PATH" RIVULET_BIN=$(CURDIR)/$(BIN)/rivulet $(GO) test -count=1 -timeout 10m -v ./test/paths

.PHONY: test-partition
test-partition: deps ## two devices: cuts of ten seconds and two minutes, restarts, a home made anew (nine minutes)
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	$(SUDO) env "PATH=$$PATH" RIVULET_BIN=$(CURDIR)/$(BIN)/rivulet $(GO) test -count=1 -timeout 20m -v ./test/partition

.PHONY: bench-board
bench-board: deps ## memory and writes of a board of 1 GB beside plain k3s, over ten minutes (a quarter of an hour)
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/bench ./test/bench
	$(SUDO) $(BIN)/bench -only board -out bench/board.md

.PHONY: test-unit
test-unit: ## what needs no lab and no built binary, quickly
	$(GO) test $$($(GO) list ./... | grep -v -e /cmd/rivulet$$ -e /test/)

.PHONY: bench
bench: deps ## the figures of bench/results.md and bench/burst.md, measured anew (about half an hour; keep the machine quiet)
	@$(MAKE) --no-print-directory build $(BIN)/demo-web.tar
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/bench ./test/bench
	$(SUDO) $(BIN)/bench
	$(SUDO) $(BIN)/bench -only burst -out bench/burst.md

.PHONY: clean
clean: ## remove what was built (Go's caches stay)
	rm -rf $(BIN) _build image/bundle/bundle_*.tar.zst image/bundle/bundle_*.json
