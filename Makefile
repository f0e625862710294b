# Rivulet. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

export GOFLAGS ?= -buildvcs=false
GO       ?= go
BIN      := bin
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# What k3s is built with: no docker, no cloud providers, SQLite without loadable extensions.
TAGS     := ctrd netgo osusergo providerless urfave_cli_no_docs sqlite_omit_load_extension static_build

# k3s and containerd do not know their own versions when they are built as libraries.
replaced  = $(shell awk '$$1=="$(1)" && $$2=="=>" {print $$4}' go.mod)
LDFLAGS   = -s -w -extldflags -static \
	-X rivulet/appliance/version.Version=$(VERSION) \
	-X github.com/k3s-io/k3s/pkg/version.Version=$(call replaced,k8s.io/kubernetes) \
	-X github.com/containerd/containerd/v2/version.Version=$(call replaced,github.com/containerd/containerd/v2)

# A folder is out of date when any Go file in it is newer; Go's own cache does the rest.
gofiles   = $(shell find $(1) -name '*.go' -not -path '*/testdata/*' 2>/dev/null)

include image/bundle/bundle.mk

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install the Debian packages that building and the lab need
	@test/deps

.PHONY: build
build: $(BIN)/rivulet $(BIN)/rivulet-lab ## build bin/rivulet and bin/rivulet-lab

$(BIN)/rivulet: go.mod go.sum Makefile $(BUNDLE) $(call gofiles,cmd/rivulet appliance fabric offload image systemd)
	@echo "building $@ (the first time takes about a quarter of an hour on two cores)"
	@mkdir -p $(BIN)
	CGO_ENABLED=1 $(GO) build -tags "$(TAGS) bundle" -ldflags "$(LDFLAGS)" -o $@ ./cmd/rivulet 2> >(grep -v 'dlopen\|pluginOpen\|plugin_dlopen\|^# rivulet/cmd' >&2)

$(BIN)/rivulet-lab: go.mod go.sum $(call gofiles,cmd/rivulet-lab test/lab)
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -o $@ ./cmd/rivulet-lab

.PHONY: clean
clean: ## remove what was built (Go's caches stay)
	rm -rf $(BIN) _build $(BUNDLE)
