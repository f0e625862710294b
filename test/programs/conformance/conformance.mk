# Upstream's end-to-end tests, built of the pinned Kubernetes: docs/design/conformance.md.
conformance_bin := $(CURDIR)/$(BIN)/conformance
conformance_go  := cd test/programs/conformance && CGO_ENABLED=1 $(GO) build -tags "$(TAGS)" -ldflags "-s -w -extldflags -static" -o $(conformance_bin)

.PHONY: conformance
conformance: ## upstream's end-to-end tests, at home and away (hours; FOCUS=, SKIP=, RUNS=home, ACCEPT=1)
	@test/deps conformance
	@$(MAKE) --no-print-directory build conformance-programs
	@$(SUDO) env "PATH=$$PATH" $(conformance_bin)/conformance -rivulet $(BIN)/rivulet $(if $(FOCUS),-focus '$(FOCUS)') $(if $(SKIP),-skip '$(SKIP)') $(if $(RUNS),-runs $(RUNS)) $(if $(ACCEPT),-accept)

.PHONY: conformance-programs
conformance-programs:
	@mkdir -p $(conformance_bin)
	@$(conformance_go)/agnhost k8s.io/kubernetes/test/images/agnhost
	@$(conformance_go)/nonewprivs k8s.io/kubernetes/test/images/nonewprivs
	@$(conformance_go)/sample-apiserver k8s.io/sample-apiserver
	@$(conformance_go)/etcd go.etcd.io/etcd/server/v3
	@$(conformance_go)/ginkgo github.com/onsi/ginkgo/v2/ginkgo
	@$(conformance_go)/conformance ./run
	@cd test/programs/conformance && cp -f $$($(GO) list -f '{{.Dir}}' k8s.io/kubernetes/test/images/agnhost)/porter/localhost.{crt,key} $(conformance_bin)/
	@cd test/programs/conformance && CGO_ENABLED=1 $(GO) test -c -vet=off -tags "$(TAGS)" -ldflags "-s -w -extldflags -static" -o $(conformance_bin)/e2e.test k8s.io/kubernetes/test/e2e
