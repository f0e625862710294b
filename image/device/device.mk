# Images to be flashed: a disk with everything, from Debian's packages and our binary.
# Included by the Makefile. See docs/image.md.

IMAGE_ARCH := $(or $(ARCH),$(bundle_host))
# Of the tree, as of the binary: the same commit makes the same image.
image_epoch = $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
image_make  = $(GO) run ./image/device/build -arch $(IMAGE_ARCH) -binary $(IMAGE_BINARY) -version $(VERSION) \
	-kubernetes $(call replaced,k8s.io/kubernetes) -epoch $(image_epoch) -out $(BIN)/image
# One that is there already saves the build of a quarter of an hour.
IMAGE_BINARY ?= $(OUT)/rivulet

.PHONY: image-deps
image-deps: ## install the Debian packages that images are made and tried with
	@ARCH=$(ARCH) test/deps image

.PHONY: image
image: image-deps ## with ARCH=amd64 or arm64: bin/image/rivulet-VERSION-ARCH.img.zst, .bmap, .bundle, .spdx.json
	@$(if $(filter amd64 arm64,$(IMAGE_ARCH)),,echo "ARCH is amd64 or arm64, not $(IMAGE_ARCH)"; exit 2)
	@$(if $(filter $(OUT)/rivulet,$(IMAGE_BINARY)),$(MAKE) --no-print-directory deps build)
	@$(image_make)

.PHONY: image-lock
image-lock: ## renew image/device/packages.lock with what Debian has now
	@$(GO) run ./image/device/build -lock
	@git --no-pager diff --stat image/device/packages.lock

# What they say stays beside the image, as NAME.test.log: make release asks for it.
image_file = $(CURDIR)/$(BIN)/image/rivulet-$(VERSION)-$(1).img.zst
image_try  = $(GO) run ./image/release/tried/run $(call image_file,$(1)) $(GO) test -count=1 -v

.PHONY: test-image
test-image: image-deps $(BIN)/demo-web.tar ## the PC image in QEMU: both loaders, growth, power cuts, tries, two machines that peer, updates (an hour and a half)
	@$(MAKE) --no-print-directory image ARCH=amd64
	@$(MAKE) --no-print-directory update-images
	RIVULET_IMAGE=$(call image_file,amd64) RIVULET_DEMO=$(CURDIR)/$(BIN)/demo-web.tar $(update_env) $(call image_try,amd64) -timeout 180m -skip RaspberryPi ./test/image

# The same tree as two releases that trust the key of the tests. OPS_KEY is in the Makefile.
.PHONY: update-images
update-images:
	@for v in 1 2; do $(MAKE) --no-print-directory image ARCH=amd64 VERSION=v$$v.0.0 ROOT_KEYS=$(OPS_KEY) BIN=$(BIN)/update/v$$v || exit; done
update_env = RIVULET_UPDATE_FROM=$(CURDIR)/$(BIN)/update/v1/image/rivulet-v1.0.0-amd64.img.zst RIVULET_UPDATE_TO=$(CURDIR)/$(BIN)/update/v2/image/rivulet-v2.0.0-amd64.bundle

.PHONY: test-update
test-update: image-deps update-images ## of test-image the updates alone, by both loaders: bad ones, power cuts, a good one (an hour)
	$(update_env) $(GO) test -count=1 -timeout 150m -v -run TestUpdate ./test/image

.PHONY: test-image-arm64
test-image-arm64: image-deps ## the Raspberry Pi's image: its boot partition file by file, its kernel and root in QEMU (a quarter of an hour)
	@$(MAKE) --no-print-directory image ARCH=arm64
	RIVULET_IMAGE_ARM64=$(call image_file,arm64) $(call image_try,arm64) -timeout 60m -run RaspberryPi ./test/image

.PHONY: test-image-twice
test-image-twice: image-deps ## two images out of one binary, in two folders and surroundings: the same bytes (minutes)
	@$(if $(filter $(OUT)/rivulet,$(IMAGE_BINARY)),$(MAKE) --no-print-directory deps build)
	RIVULET_TWICE_ARCH=$(IMAGE_ARCH) RIVULET_TWICE_BINARY=$(abspath $(IMAGE_BINARY)) $(GO) test -count=1 -timeout 60m -v -run TestTheSameImageTwice ./image/device/build
