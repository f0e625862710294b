package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/operate"
)

// defaultUser has the owner's rights.
const defaultUser = "owner"

func newKubeconfig(c *common) *cobra.Command {
	q := api.KubeconfigRequest{}
	var life, server string
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "print a kubeconfig for a laptop on the LAN",
		Long: "It works through the control port (TCP 7442), which is open to the LAN, until it expires or is revoked; open connections end with it.\n" +
			"Without --namespace it is for the whole cluster, and --role admin has all rights of root here. The file contains a private key, which the device does not store.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.For, err = lifetime(life); err != nil {
				return err
			}
			made, err := kubeconfigFor(cmd, c, q, server)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if err := keepPrivate(out); err != nil {
				return err
			}
			if _, err := out.Write(made.File); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "user %s, role %s, until %s; to end it: sudo rivulet kubeconfig revoke %s\n", made.User, of(made.Kubeconfig), made.Expires.Local().Format(time.DateTime), made.User)
			if len(made.Servers) > 1 {
				fmt.Fprintln(cmd.ErrOrStderr(), "the device is also at "+strings.Join(made.Servers[1:], ", ")+"; choose with --server")
			}
			if made.Warning != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+made.Warning)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.User, "user", defaultUser, "the user's name, of your choice, for list and revoke")
	f.StringVar(&life, "for", "30d", "validity: 30d, 4w, 12h, 45m")
	f.StringVarP(&q.Namespace, "namespace", "n", "", "limit it to this namespace; default: the whole cluster")
	f.StringVar(&q.Role, "role", "admin", "view, edit or admin")
	f.StringVar(&server, "server", "", "address or name of this device for the laptop; default: its first address on the LAN")
	f.BoolVar(&q.Replace, "replace", false, "revoke the user's former access")
	cmd.AddCommand(newKubeconfigList(c), newKubeconfigRevoke(c))
	return cmd
}

func newKubeconfigList(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use:   "list",
		Short: "list users with access from the LAN, also those of the last 30 days",
		Args:  noArgs,
		RunE:  get(c, "/v1/kubeconfigs", printKubeconfigs),
	}, "wide")
}

func newKubeconfigRevoke(c *common) *cobra.Command {
	var vcluster string
	cmd := &cobra.Command{
		Use:   "revoke USER",
		Short: "end a user's access at once, open connections included",
		Args:  takes(1, "revoke takes the name of one user; see: rivulet kubeconfig list, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			users, err := usersWhere(cmd.Context(), c, func(k api.Kubeconfig) bool { return k.VCluster == vcluster })
			if err := known("access of", args[0], "rivulet kubeconfig list", users, err); err != nil {
				return err
			}
			if err := confirm(cmd, "end the access of "+args[0], "it ends at once, open connections included"); err != nil {
				return err
			}
			if err := c.cluster().RevokeKubeconfig(cmd.Context(), args[0], vcluster); err != nil {
				return err
			}
			return printf(cmd, "%s has no access any more\n", args[0])
		},
	}
	yesFlag(cmd)
	cmd.Flags().StringVar(&vcluster, "vcluster", "", "the user's virtual cluster; default: this cluster")
	return cmd
}

// lifetime parses --for.
func lifetime(text string) (time.Duration, error) {
	d, err := operate.Lifetime(text)
	if err != nil {
		return 0, usagef("--for %s is no time; for example: --for 30d, or --for 12h; see: rivulet kubeconfig --help", text)
	}
	return d, nil
}

// kubeconfigFor makes a user's access, and shows what it waits for.
func kubeconfigFor(cmd *cobra.Command, c *common, q api.KubeconfigRequest, server string) (operate.Kubeconfig, error) {
	defer busy("waiting for the API server")()
	return c.cluster().Kubeconfig(cmd.Context(), q, server)
}

// keepPrivate removes the permissions of others from the file that the shell has created for the output.
func keepPrivate(out io.Writer) error {
	f, ok := raw(out).(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return f.Chmod(0o600)
}

func of(k api.Kubeconfig) string {
	if k.VCluster != "" {
		return k.Role + " of virtual cluster " + k.VCluster
	}
	if k.Namespace == "" {
		return k.Role + " of the cluster"
	}
	return k.Role + " of " + k.Namespace
}

func printKubeconfigs(out io.Writer, l api.Kubeconfigs, wide bool) error {
	head := "USER\tROLE\tVCLUSTER\tNAMESPACE\tSTATE\tEXPIRES\tLAST USED\tCONNECTIONS"
	if wide {
		head += "\tMADE\tREVOKED\tLINK UNTIL"
	}
	return table(out, "nobody has access from the LAN; make a kubeconfig with: sudo rivulet kubeconfig > FILE", head, l.Kubeconfigs, func(k api.Kubeconfig) []any {
		cells := []any{k.User, k.Role, dash(k.VCluster), dash(k.Namespace), k.State, moment(k.Expires), moment(k.Used), k.Connections}
		if wide {
			cells = append(cells, moment(k.Made), moment(k.Revoked), moment(k.Link))
		}
		return cells
	})
}

// moment formats a time for tables.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}
