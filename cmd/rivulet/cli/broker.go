package cli

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/spf13/cobra"

	"rivulet/appliance/state/identity"
	"rivulet/fabric/broker"
)

func newBroker(c *common) *cobra.Command {
	var listen, host, metrics string
	var only []string
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "be the place where clusters of a group meet that share no LAN",
		Long: "It runs in the foreground on a host that all of them reach, needs no root, and prints the line for trust.broker of each device of the group. Its port is open for TCP and UDP.\n" +
			"It introduces members of the same group to each other and relays their packets, encrypted, where they find no direct path. It has no secret of the group, and is no peer: rivulet docs broker.\n" +
			"The key is in the folder of --state, file broker.key; without it the broker has another ID.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("the broker's port cannot be opened (%w); end the program that has it, or choose another with --listen", err)
			}
			self, key, err := identity.Broker(c.dirs.State)
			if err != nil {
				l.Close()
				return err
			}
			name, _ := os.Hostname() // --host is there for a name that leads nowhere
			at := broker.Address{ID: self.ID, Host: cmp.Or(host, name, "localhost"), Port: uint16(l.Addr().(*net.TCPAddr).Port)}
			if err := printf(cmd, "broker: [%q]\n", at); err != nil {
				l.Close()
				return err
			}
			server := broker.NewServer(self, key, only, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			if metrics != "" {
				m, err := net.Listen("tcp", metrics)
				if err != nil {
					l.Close()
					return fmt.Errorf("the port of the metrics cannot be opened (%w); end the program that has it, or choose another with --metrics", err)
				}
				go server.ServeMetrics(cmd.Context(), m) //nolint:errcheck // ends with the broker
			}
			return server.Serve(cmd.Context(), l)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", fmt.Sprintf(":%d", broker.DefaultPort), "address and port; UDP is at the same port of all addresses")
	cmd.Flags().StringVar(&metrics, "metrics", "", "address and port for metrics in the format of Prometheus, at /metrics, without a sign-in: 127.0.0.1:9464 for example (default: none)")
	cmd.Flags().StringVar(&host, "host", "", "the name or address by which devices reach this host (default: its host name)")
	cmd.Flags().StringSliceVar(&only, "only", nil, "fingerprints of the groups that it admits, which rivulet status of a device that is not admitted has (default: all)")
	return cmd
}

// brokerState is one broker in a few words.
func brokerState(b broker.Status) string {
	switch {
	case !b.Reached && b.Reason != "":
		return "not reached: " + b.Reason
	case !b.Reached:
		return "not reached yet"
	case b.Members == 1:
		return "reached, 1 other cluster of the group is there"
	}
	return fmt.Sprintf("reached, %d other clusters of the group are there", b.Members)
}
