# The sources of a release: docs/design/release.md. Included by the Makefile.
SOURCES := $(BIN)/sources

# After make bundle-pins and make image-lock.
.PHONY: source-lock
source-lock:
	@env -u GOOS -u GOARCH $(GO) run ./image/sources/make lock
	@git --no-pager diff --stat image/sources/packages.lock

.PHONY: sources
sources: ## the sources of a release into bin/sources: Debian's source packages, and this tree with all Go modules (1.6 GB)
	@env -u GOOS -u GOARCH $(GO) run ./image/sources/make pack -version $(VERSION) -built $(BUILD_TIME) -out $(SOURCES)

.PHONY: test-sources
test-sources: ## that the tree's archive of sources builds with no network, and is the same bytes twice (minutes)
	RIVULET_TEST_SOURCES="$(TAGS)" $(GO) test -count=1 -timeout 60m -v -run TestTheTreeBuildsFromItsArchive ./image/sources/make
