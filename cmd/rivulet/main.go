// Command rivulet is the appliance: the supervisor and its command line, and, by other names, the engine and its tools.
package main

import (
	"os"

	"rivulet/appliance/addons/resourcemetrics"
	"rivulet/appliance/engine/k3s"
	"rivulet/cmd/rivulet/cli"
)

func main() {
	if k3s.Dispatch(k3s.OwnAPI{GroupVersion: resourcemetrics.GroupVersion, Resources: resourcemetrics.Resources,
		Handler: resourcemetrics.Handler, Register: resourcemetrics.RegisterLocal}) {
		return
	}
	os.Exit(cli.Main(cli.Arguments(os.Args), k3s.EngineName))
}
