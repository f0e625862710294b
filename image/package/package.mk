# Packages for Debian and for distributions with RPM: docs/design/release.md. Included by the Makefile.
package_nfpm := $(CURDIR)/_build/nfpm
# Debian wants an address, and none is made up.
package_maintainer = The Rivulet authors <$(or $(CONTACT),rivulet@localhost)>
package_arch  = $(patsubst armv7,arm7,$(1))

# nfpm has a module of its own: what it needs is no part of the product.
$(package_nfpm): image/package/nfpm/go.mod image/package/nfpm/go.sum
	@mkdir -p $(@D)
	@echo "  BUILD  nfpm"
	@cd image/package/nfpm && env -u GOOS -u GOARCH CGO_ENABLED=0 $(GO) build -o $@ github.com/goreleaser/nfpm/v2/cmd/nfpm

# One package of each kind: BINARY=bin/amd64/rivulet PACKAGE_ARCH=amd64 INTO=bin/release
.PHONY: package
package: $(package_nfpm)
	@mkdir -p $(INTO)
	@CGO_ENABLED=1 env -u GOOS -u GOARCH $(GO) run -tags "$(TAGS)" ./cmd/rivulet-pages _build/pages $(BUILD_TIME) $(VERSION) "$(package_maintainer)"
	@env -u GOOS -u GOARCH $(GO) run ./image/sources/make list -version $(VERSION) -of $(PACKAGE_ARCH) -out _build/pages/SOURCES
	@chmod -R u=rwX,go=rX _build/pages # whatever the umask: modes are part of the package
	@sed '/^license:/d; /^changelog:/d' image/package/nfpm.yaml >_build/nfpm-deb.yaml
	@cp image/package/nfpm.yaml _build/nfpm-rpm.yaml
	@for kind in deb rpm; do \
		SOURCE_DATE_EPOCH=$(BUILD_TIME) PACKAGE_ARCH=$(call package_arch,$(PACKAGE_ARCH)) PACKAGE_VERSION=$(VERSION) PACKAGE_BINARY=$(BINARY) PACKAGE_HOMEPAGE="$(RELEASES)" PACKAGE_MAINTAINER="$(package_maintainer)" PACKAGE_PAGES=_build/pages \
			$(package_nfpm) package -f _build/nfpm-$$kind.yaml -p $$kind -t $(INTO) || exit 1; done

# What test/suites/systemd installs, upgrades and removes: two versions, of this machine's binary and of the same with a byte more.
.PHONY: package-test
package-test:
	@rm -rf $(BIN)/package-test
	@mkdir -p $(BIN)/package-test/v0.0.1 $(BIN)/package-test/v0.0.2
	@ln $(BIN)/rivulet $(BIN)/package-test/v0.0.1/rivulet
	@cp $(BIN)/rivulet $(BIN)/package-test/v0.0.2/rivulet
	@echo >>$(BIN)/package-test/v0.0.2/rivulet
	@for v in v0.0.1 v0.0.2; do \
		$(MAKE) --no-print-directory package VERSION=$$v BINARY=$(BIN)/package-test/$$v/rivulet PACKAGE_ARCH=$(patsubst arm,armv7,$(bundle_host)) INTO=$(BIN)/package-test/$$v || exit 1; done

.PHONY: packages
packages: ## .deb and .rpm of this machine's bin/rivulet, into bin/package
	@$(MAKE) --no-print-directory build
	@rm -rf $(BIN)/package
	@$(MAKE) --no-print-directory package BINARY=$(BIN)/rivulet PACKAGE_ARCH=$(patsubst arm,armv7,$(bundle_host)) INTO=$(BIN)/package

# By Debian's rules and rpm's. What may be otherwise, and why: image/package/lintian-overrides and rpmlint.toml.
.PHONY: lint-packages
lint-packages: packages ## lintian and rpmlint on what make packages made
	@test/deps lint
	@lintian --allow-root --fail-on error,warning $(BIN)/package/*.deb
	@rpmlint --strict -c image/package/rpmlint.toml $(BIN)/package/*.rpm
