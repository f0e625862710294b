# The licences of what is in the binary: docs/design/release.md. Included by the Makefile.
LICENSES := image/licenses/licenses.zst

$(LICENSES): go.mod go.sum LICENSE image/bundle/runc/go.mod image/bundle/debs.list $(BUNDLE) $(call bundle_sources,image/licenses/collect)
	@echo "  COLLECT licences"
	@$(bundle_run) ./image/licenses/collect -tags "$(TAGS)" -debian $(bundle_in)/netfilter/licences -texts $@

.PHONY: notice
notice: ## NOTICE: every module and bundled program with its licence
	@$(bundle_run) ./image/licenses/collect -tags "$(TAGS)" -notice NOTICE
