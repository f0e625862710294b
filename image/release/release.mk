# What is published, and the architectures other than this machine's. Included by
# the Makefile. See docs/design/release.md.

# Device images that a release carries. Each has to be in bin/image, with what
# make test-image leaves when that very image has passed; empty: none.
IMAGES ?= amd64 arm64

# Each binary is built a second time, in another folder with a cache of its own, and from that each image. TWICE= leaves it out, of drafts.
TWICE ?= yes
twice_tree  := _build/twice/deeper/tree
twice_make   = GOCACHE=$(CURDIR)/_build/twice/cache $(MAKE) --no-print-directory -C $(twice_tree) VERSION='$(VERSION)' BUILD_TIME='$(BUILD_TIME)' ROOT_KEYS='$(ROOT_KEYS)' MIN_GENERATION='$(MIN_GENERATION)' image_epoch=$(image_epoch)
twice_same   = image/release/same $(1) $(twice_tree)/$(1)

.PHONY: twice
twice: ## what make release does before it publishes: bin/ARCH/rivulet and the IMAGES built again elsewhere, and compared
	@rm -rf _build/twice && mkdir -p $(twice_tree) && git ls-files -z | xargs -0 cp --parents -t $(twice_tree)
	@set -e; for a in $(ARCHES); do echo "building $$a a second time"; \
		$(twice_make) ARCH=$$a $(BIN)/$$a/rivulet; \
		$(call twice_same,_build/bundle/linux_$${a%v7}/runc); $(call twice_same,$(BIN)/$$a/rivulet); done
	@set -e; for a in $(IMAGES); do \
		$(twice_make) ARCH=$$a image; \
		for end in img.zst img.bmap bundle img.cdx.json; do $(call twice_same,$(BIN)/image/rivulet-$(VERSION)-$$a.$$end); done; done
	@rm -rf _build/twice

# What is released and who signs it. All that can be refused before anything is built is refused then, too.
release_run = $(GO) run ./image/release -version '$(VERSION)' -built '$(BUILD_TIME)' -roots '$(ROOT_KEYS)' -generation '$(MIN_GENERATION)' -key '$(SIGN_KEY)' -certificate '$(SIGN_CERT)' -releases '$(RELEASES)' -contact '$(CONTACT)' $(if $(DRAFT),-draft) $(if $(TWICE),,-once)

.PHONY: release
release: ## bin/release: each architecture: binary, .deb, .rpm, bill of materials; images that passed their tests, sources, install.sh, hashes, where they come from; bin/sizes.md (hours; DRAFT=1: of any tree)
	@[ -z '$(REPO_KEY)' ] || test/deps repository
	@$(release_run) -check -in $(BIN) -images "$(IMAGES)" $(ARCHES)
	@DRAFT='$(DRAFT)' image/package/repository check '$(REPO_KEY)' '$(RELEASES)'
	@[ -z '$(SIGN_KEY)' ] || $(GO) run ./image/signed/sign fits -key '$(SIGN_KEY)' -certificate '$(SIGN_CERT)'
	@for a in $(ARCHES); do $(MAKE) --no-print-directory deps ARCH=$$a && $(MAKE) --no-print-directory build ARCH=$$a || exit 1; done
	@$(if $(TWICE),image/progress twice $(MAKE) --no-print-directory twice)
	@rm -rf _build/package
	@for a in $(ARCHES); do $(MAKE) --no-print-directory package BINARY=$(BIN)/$$a/rivulet PACKAGE_ARCH=$$a INTO=_build/package/$$a || exit 1; done
	@[ -z '$(REPO_KEY)' ] || image/package/repository make '$(REPO_KEY)' _build/package _build/repository '$(BUILD_TIME)' '$(RELEASES)'
	@$(if $(DRAFT),,$(MAKE) --no-print-directory sources)
	@$(release_run) -in $(BIN) -out $(BIN)/release -sizes $(BIN)/sizes.md -packages _build/package $(if $(REPO_KEY),-repository _build/repository) $(if $(DRAFT),,-sources $(SOURCES)) -images "$(IMAGES)" $(ARCHES)
	@[ -z '$(SIGN_KEY)' ] || $(GO) run ./image/signed/sign file -key '$(SIGN_KEY)' -certificate '$(SIGN_CERT)' $(BIN)/release/SHA256SUMS $(BIN)/release/*.provenance.json $$(ls $(BIN)/release/*.zst $(BIN)/release/*.bundle 2>/dev/null | grep -v src.tar.zst)

# What apt has replaced: the C library of the machine that builds.
.PHONY: libc-lock
libc-lock:
	@for a in $(ARCHES); do $(MAKE) --no-print-directory deps ARCH=$$a || exit 1; done
	@$(GO) run ./image/release -libc-lock $(ARCHES)
	@git --no-pager diff --stat image/release/libc.lock

# Those that are not this machine's: this one's is what all other tests try.
FOREIGN ?= $(filter-out $(patsubst arm,armv7,$(bundle_host)),$(ARCHES))
.PHONY: test-arch
test-arch: ## bin/ARCH/rivulet of ARM on this machine (qemu-user), and that two builds are the same
	@for a in $(FOREIGN); do $(MAKE) --no-print-directory deps ARCH=$$a && $(MAKE) --no-print-directory build ARCH=$$a || exit 1; done
	RIVULET_ARCHES="$(FOREIGN)" $(GO) test -count=1 -v -timeout 60m ./test/suites/cross ./image/release

# Half of what breaks on 32-bit ARM is found without compiling Kubernetes for it:
# constants that do not fit, atomics that are not aligned.
.PHONY: vet-arm
vet-arm:
	@CGO_ENABLED=0 GOOS=linux GOARCH=arm GOARM=7 $(GO) vet -trimpath -tags "$(TAGS)" $$($(GO) list ./cmd/... ./appliance/... ./fabric/... ./offload/... ./image/... ./systemd/... | grep -v -e engine/k3s$$ -e engine/kine$$ -e cmd/rivulet$$ -e cmd/rivulet-lab$$)
