package cli

import (
	"fmt"
	"io"
	"strings"

	"rivulet/appliance/addons/loadbalancer"
)

// printServices prints what the LAN reaches, and where.
func printServices(out io.Writer, services []loadbalancer.Service) {
	for _, s := range services {
		fmt.Fprintf(out, "SERVICE %s at %s\n", s.Name, strings.Join(s.At, ", "))
	}
}
