# The embedded bundle: static helpers, packed and put where go:embed finds them.
# Included by the Makefile. Reads GOOS and GOARCH; what is built lands in _build,
# for each architecture apart. See docs/design/bundle.md.

GOOS   ?= $(shell go env GOOS)
GOARCH ?= $(shell go env GOARCH)

# C compiler for the architecture that is built for: runc needs cgo, pause is C.
bundle_prefix_amd64 := x86_64-linux-gnu-
bundle_prefix_arm64 := aarch64-linux-gnu-
bundle_prefix_arm   := arm-linux-gnueabihf-
bundle_host := $(shell go env GOHOSTARCH)
BUNDLE_CC ?= $(if $(filter $(bundle_host),$(GOARCH)),,$(bundle_prefix_$(GOARCH)))gcc

bundle_in  := _build/bundle/$(GOOS)_$(GOARCH)
BUNDLE     := image/bundle/bundle_$(GOOS)_$(GOARCH).tar.zst
# Neither the folder nor the hour of the build is in what is built. The build ID
# would be: it is made of the flags, and those name the folder of libseccomp.
bundle_go  := GOOS=$(GOOS) GOARCH=$(GOARCH) GOARM=7 go build -trimpath -buildvcs=false
bundle_ld  := -s -w -buildid=
# The tools that make the bundle run here, whatever it is built for.
bundle_run := env -u GOOS -u GOARCH go run -buildvcs=false

# The gateway pod's program for foreign clusters, whose nodes need not be like us. See docs/design/burst-network.md.
gateways := $(addprefix _build/gateway/,amd64 arm64)

bundle_helpers := $(addprefix $(bundle_in)/,runc containerd-shim-runc-v2 cni rivulet-tunnel pause xtables libm.so.6 debs.stamp) $(gateways)
bundle_sources  = $(filter-out %_test.go,$(shell find $(1) -name '*.go' 2>/dev/null))

.PHONY: bundle
bundle: $(BUNDLE)

$(BUNDLE): $(bundle_helpers) $(call bundle_sources,image/bundle/pack) image/bundle/bundle.go image/bundle/manifest.go
	@echo "  PACK   $@"
	@$(bundle_run) ./image/bundle/pack -arch $(GOARCH) -in $(bundle_in) -out $(basename $(basename $@)) $(gateways)

$(bundle_in):
	@mkdir -p $@

# iptables and its libraries, and libseccomp for runc, out of pinned packages.
$(bundle_in)/debs.stamp: image/bundle/debs.list $(call bundle_sources,image/bundle/debs image/debian image/filesum) | $(bundle_in)
	@command -v $(BUNDLE_CC) >/dev/null || { echo "there is no $(BUNDLE_CC): make deps ARCH=$(or $(ARCH),$(patsubst arm,armv7,$(GOARCH)))" >&2; exit 1; }
	@echo "  DEBS   iptables, libseccomp"
	@$(bundle_run) ./image/bundle/debs -arch $(GOARCH) -out $(bundle_in)
	@touch $@

.PHONY: bundle-pins
bundle-pins:
	@$(bundle_run) ./image/bundle/debs -pins -out _build/pins
	@git --no-pager diff --stat image/bundle/debs.list

# The library's folder is said to Go, too: what pkg-config answers is no part of the key of Go's
# build cache, which would go on with the folder of another clone, that may be gone.
$(bundle_in)/runc: image/bundle/runc/go.mod image/bundle/runc/go.sum $(bundle_in)/debs.stamp | $(bundle_in)
	@echo "  BUILD  runc"
	@cd image/bundle/runc && CGO_ENABLED=1 CC=$(BUNDLE_CC) CGO_LDFLAGS="-O2 -g -L$$(echo $(CURDIR)/$(bundle_in)/sysroot/usr/lib/*-linux-gnu*)" PKG_CONFIG_SYSROOT_DIR=$(CURDIR)/$(bundle_in)/sysroot \
		PKG_CONFIG_LIBDIR=$$(echo $(CURDIR)/$(bundle_in)/sysroot/usr/lib/*/pkgconfig) $(bundle_go) -tags "seccomp netgo osusergo" \
		-ldflags "$(bundle_ld) -extldflags -static" -o $(CURDIR)/$@ github.com/opencontainers/runc

# Without gRPC, as upstream ships it: k3s speaks ttrpc to the shim.
$(bundle_in)/containerd-shim-runc-v2: go.mod go.sum | $(bundle_in)
	@echo "  BUILD  containerd-shim-runc-v2"
	@CGO_ENABLED=0 $(bundle_go) -tags no_grpc -ldflags "$(bundle_ld)" -o $@ github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2

$(bundle_in)/cni: go.mod $(call bundle_sources,cmd/rivulet-cni image/bundle/cni image/bundle/cnigen offload/nodeagent/podgate offload/nodeagent/podnet fabric/netmon) | $(bundle_in)
	@echo "  BUILD  cni"
	@$(bundle_run) ./image/bundle/cnigen _build/cni
	@CGO_ENABLED=0 $(bundle_go) -tags cni_upstream -ldflags "$(bundle_ld) -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$$(go list -m -f '{{.Version}}' github.com/containernetworking/plugins)" -o $@ ./cmd/rivulet-cni

$(bundle_in)/rivulet-tunnel: go.mod $(call bundle_sources,cmd/rivulet-tunnel fabric) | $(bundle_in)
	@echo "  BUILD  rivulet-tunnel"
	@CGO_ENABLED=0 $(bundle_go) -ldflags "$(bundle_ld)" -o $@ ./cmd/rivulet-tunnel

_build/gateway/%: go.mod $(call bundle_sources,cmd/rivulet-gateway fabric)
	@mkdir -p $(@D)
	@echo "  BUILD  rivulet-gateway for $*"
	@CGO_ENABLED=0 GOOS=linux GOARCH=$* GOARM=7 go build -trimpath -buildvcs=false -ldflags "$(bundle_ld)" -o $@ ./cmd/rivulet-gateway

# C without the C library. ARM instructions on 32-bit ARM: in Thumb the register
# that holds a system call's number is taken.
bundle_c := -Os -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
	-Wall -Wextra -Werror -Wl,--build-id=none -s $(if $(filter arm,$(GOARCH)),-marm)

$(bundle_in)/pause: cmd/rivulet-pause/pause.c image/bundle/freestanding/call.h image/bundle/bundle.mk | $(bundle_in)
	@echo "  BUILD  pause"
	@$(BUNDLE_CC) $(bundle_c) -static -Wl,-z,noseparate-code -Iimage/bundle/freestanding -o $@ $<

$(bundle_in)/xtables: cmd/rivulet-xtables/xtables.c image/bundle/freestanding/call.h image/bundle/bundle.mk | $(bundle_in)
	@echo "  BUILD  xtables"
	@$(BUNDLE_CC) $(bundle_c) -static -Wl,-z,noseparate-code -Iimage/bundle/freestanding -o $@ $<

# Programs ask for a function of the C library of a certain version: the oldest of the architecture.
bundle_glibc_amd64 := 2.2.5
bundle_glibc_arm64 := 2.17
bundle_glibc_arm   := 2.4

$(bundle_in)/libm.so.6: image/bundle/libm/lround.c image/bundle/bundle.mk | $(bundle_in)
	@echo "  BUILD  libm"
	@echo 'GLIBC_$(bundle_glibc_$(GOARCH)) { global: lround; local: *; };' >$@.map
	@$(BUNDLE_CC) $(bundle_c) -shared -fPIC -Wl,-soname,libm.so.6,--hash-style=gnu,--version-script,$@.map,-z,max-page-size=4096 -o $@ $<
