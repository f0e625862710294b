# Images to be flashed: a disk with everything, from Debian's packages and our binary.
# Included by the Makefile. See docs/design/image.md.

IMAGE_ARCH := $(or $(ARCH),$(bundle_host))
# Of the tree, as of the binary: the same commit makes the same image.
image_epoch = $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
image_make  = $(GO) run ./image/device/build -arch $(IMAGE_ARCH) -binary $(IMAGE_BINARY) -version $(VERSION) \
	-kubernetes $(call replaced,k8s.io/kubernetes) -epoch $(image_epoch) -out $(BIN)/image
# One that is there already saves the build of a quarter of an hour.
IMAGE_BINARY ?= $(OUT)/rivulet

.PHONY: image-deps
image-deps:
	@ARCH=$(ARCH) test/deps image

.PHONY: image
image: image-deps ## an image to flash (ARCH=amd64 or arm64): bin/image/rivulet-VERSION-ARCH.img.zst, .bmap, .bundle, .img.cdx.json
	@$(if $(filter amd64 arm64,$(IMAGE_ARCH)),,echo "ARCH is amd64 or arm64, not $(IMAGE_ARCH)"; exit 2)
	@$(if $(filter $(OUT)/rivulet,$(IMAGE_BINARY)),$(MAKE) --no-print-directory deps build)
	@$(image_make)

# Renews image/device/packages.lock with what Debian has now.
.PHONY: image-lock
image-lock:
	@$(GO) run ./image/device/build -lock
	@git --no-pager diff --stat image/device/packages.lock

# When all have passed, the image's hash stays beside it as NAME.tested: make release compares. A part (RUN) leaves nothing.
image_file   = $(image_name).img.zst
image_name   = $(CURDIR)/$(BIN)/image/rivulet-$(VERSION)-$(1)
image_sum    = @$(if $(RUN),:,sha256sum $(image_file) >$(image_name).testing)
image_test   = $(GO) test -count=1 -v $(if $(RUN),-run '$(RUN)')
image_tested = @$(if $(RUN),:,sha256sum --check --quiet $(image_name).testing && mv $(image_name).testing $(image_name).tested)

.PHONY: test-image
test-image: image-deps ## the PC image in QEMU, hours, or its tests RUN=; ARCH=arm64: the Raspberry Pi's
	@$(MAKE) --no-print-directory test-image-$(IMAGE_ARCH)

# Both loaders, growth, power cuts, tries, two machines that peer, updates.
.PHONY: test-image-amd64
test-image-amd64: $(BIN)/demo-web.tar
	@$(MAKE) --no-print-directory image ARCH=amd64
	@$(MAKE) --no-print-directory update-images
	$(call image_sum,amd64)
	RIVULET_IMAGE=$(call image_file,amd64) RIVULET_DEMO=$(CURDIR)/$(BIN)/demo-web.tar $(update_env) $(image_test) -timeout 180m -skip RaspberryPi ./test/suites/image
	$(call image_tested,amd64)

# The boot partition file by file, the kernel and the root in QEMU.
.PHONY: test-image-arm64
test-image-arm64:
	@$(MAKE) --no-print-directory image ARCH=arm64
	$(call image_sum,arm64)
	RIVULET_IMAGE_ARM64=$(call image_file,arm64) $(image_test) -timeout 60m $(if $(RUN),,-run RaspberryPi) ./test/suites/image
	$(call image_tested,arm64)

# The same tree as two releases that trust the key of the tests. OPS_TRUST is in the Makefile.
.PHONY: update-images
update-images:
	@for v in 1 2; do $(MAKE) --no-print-directory image ARCH=amd64 VERSION=v$$v.0.0 $(OPS_TRUST) BIN=$(BIN)/update/v$$v || exit; done
update_env = RIVULET_UPDATE_FROM=$(CURDIR)/$(BIN)/update/v1/image/rivulet-v1.0.0-amd64.img.zst RIVULET_UPDATE_TO=$(CURDIR)/$(BIN)/update/v2/image/rivulet-v2.0.0-amd64.bundle

# Two images out of one binary, in two folders and surroundings: the same bytes.
.PHONY: test-image-twice
test-image-twice: image-deps
	@$(if $(filter $(OUT)/rivulet,$(IMAGE_BINARY)),$(MAKE) --no-print-directory deps build)
	RIVULET_TWICE_ARCH=$(IMAGE_ARCH) RIVULET_TWICE_BINARY=$(abspath $(IMAGE_BINARY)) $(GO) test -count=1 -timeout 60m -v -run TestTheSameImageTwice ./image/device/build
