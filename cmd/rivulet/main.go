package main

import (
	_ "github.com/k3s-io/k3s/pkg/cli/agent"
	_ "github.com/k3s-io/k3s/pkg/cli/server"
	_ "github.com/k3s-io/k3s/pkg/cli/crictl"
	_ "github.com/k3s-io/k3s/pkg/containerd"
	_ "github.com/k3s-io/k3s/pkg/ctr"
	_ "github.com/k3s-io/k3s/pkg/kubectl"
	_ "github.com/k3s-io/k3s/pkg/executor/embed"
	_ "sigs.k8s.io/cri-tools/cmd/crictl"
)

func main() {}
