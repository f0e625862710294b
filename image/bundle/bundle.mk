# The embedded bundle: static helpers, packed and put where go:embed finds them.
# Included by the Makefile. Reads GOOS and GOARCH; what is built lands in _build,
# for each architecture apart. See docs/bundle.md.

GOOS   ?= $(shell go env GOOS)
GOARCH ?= $(shell go env GOARCH)

# C compiler for the architecture that is built for: runc needs cgo, pause is C.
bundle_cc_amd64 := gcc
bundle_cc_arm64 := gcc
ifneq ($(GOARCH),$(shell go env GOHOSTARCH))
bundle_cc_amd64 := x86_64-linux-gnu-gcc
bundle_cc_arm64 := aarch64-linux-gnu-gcc
endif
BUNDLE_CC ?= $(bundle_cc_$(GOARCH))

bundle_in  := _build/bundle/$(GOOS)_$(GOARCH)
BUNDLE     := image/bundle/bundle_$(GOOS)_$(GOARCH).tar.zst
bundle_go  := GOOS=$(GOOS) GOARCH=$(GOARCH) go build -trimpath -buildvcs=false
# The tools that make the bundle run here, whatever it is built for.
bundle_run := env -u GOOS -u GOARCH go run -buildvcs=false

bundle_helpers := $(addprefix $(bundle_in)/,runc containerd-shim-runc-v2 cni rivulet-tunnel pause)
bundle_sources  = $(filter-out %_test.go,$(shell find $(1) -name '*.go' 2>/dev/null))

.PHONY: bundle
bundle: $(BUNDLE)

$(BUNDLE): $(bundle_helpers) $(call bundle_sources,image/bundle/pack) image/bundle/bundle.go image/bundle/manifest.go
	@echo "  PACK   $@"
	@$(bundle_run) ./image/bundle/pack -arch $(GOARCH) -in $(bundle_in) -out $(basename $(basename $@))

$(bundle_in):
	@mkdir -p $@

$(bundle_in)/runc: image/bundle/runc/go.mod image/bundle/runc/go.sum | $(bundle_in)
	@echo "  BUILD  runc"
	@cd image/bundle/runc && CGO_ENABLED=1 CC=$(BUNDLE_CC) $(bundle_go) -tags "seccomp netgo osusergo" \
		-ldflags "-s -w -extldflags -static" -o $(CURDIR)/$@ github.com/opencontainers/runc

# Without gRPC, as upstream ships it: k3s speaks ttrpc to the shim.
$(bundle_in)/containerd-shim-runc-v2: go.mod go.sum | $(bundle_in)
	@echo "  BUILD  containerd-shim-runc-v2"
	@CGO_ENABLED=0 $(bundle_go) -tags no_grpc -ldflags "-s -w" -o $@ github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2

$(bundle_in)/cni: go.mod $(call bundle_sources,cmd/rivulet-cni image/bundle/cni image/bundle/cnigen) | $(bundle_in)
	@echo "  BUILD  cni"
	@$(bundle_run) ./image/bundle/cnigen _build/cni
	@CGO_ENABLED=0 $(bundle_go) -tags cni_upstream -ldflags "-s -w -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$$(go list -m -f '{{.Version}}' github.com/containernetworking/plugins)" -o $@ ./cmd/rivulet-cni

$(bundle_in)/rivulet-tunnel: go.mod $(call bundle_sources,cmd/rivulet-tunnel fabric) | $(bundle_in)
	@echo "  BUILD  rivulet-tunnel"
	@CGO_ENABLED=0 $(bundle_go) -ldflags "-s -w" -o $@ ./cmd/rivulet-tunnel

$(bundle_in)/pause: cmd/rivulet-pause/pause.c | $(bundle_in)
	@echo "  BUILD  pause"
	@$(BUNDLE_CC) -Os -static -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -Wall -Wextra -Werror \
		-Wl,--build-id=none -Wl,-z,noseparate-code -s -o $@ $<
