package cli

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"rivulet/appliance/config"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/lifetime/firstboot"
	"rivulet/appliance/lifetime/install"
	"rivulet/appliance/lifetime/reset"
	"rivulet/appliance/state/paths"
	"rivulet/image/device/layout"
)

func newReset(c *common, engineName string) *cobra.Command {
	var factory, noStart bool
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "delete the cluster and the peers; the system and the service stay",
		Long: "The device keeps its identity, and peers again where trust is automatic. With --factory it becomes a new device,\n" +
			"without a configuration. A running service is started again afterwards, with an empty cluster.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("reset"); err != nil {
				return err
			}
			lost := "all pods, volumes and objects of this cluster are lost, and its peers forgotten" + c.whatThereIs(cmd.Context())
			if sql, err := datastore.LoadSQLCluster(c.dirs.State); err == nil && sql.Database != "" {
				lost += ". The objects stay in " + sql.Database + ", which this device uses again only after they were deleted there"
			}
			if factory {
				lost += ". Its identity and its configuration are lost, too"
			}
			device := firstboot.At("/", layout.BootDir)
			if factory && onImage(device.Root) {
				lost += ", with its SSH keys, its Wi-Fi networks and " + config.CardName + " on its boot partition: without a new one it joins no Wi-Fi"
			}
			if err := confirm(cmd, "reset this device", lost); err != nil {
				return err
			}
			ctx := cmd.Context()
			again := install.HaveSystemd() && install.IsActive(ctx) && !noStart
			told := goodbye(ctx, c)
			r := end(ctx, c, engineName)
			sayTold(&r, told)
			if r.Running != 0 {
				return printCleanup(cmd, c, r)
			}
			// The card first: a device without its state would take it again. Keys and Wi-Fi last: until the rest is done
			// somebody may have to come back.
			image := factory && onImage(device.Root)
			do := func(f func() ([]string, error)) bool {
				removed, err := f()
				r.Removed = append(r.Removed, removed...)
				if err != nil {
					r.Left = append(r.Left, err.Error())
				}
				return err == nil
			}
			ok := !image || do(func() ([]string, error) { return firstboot.ForgetCard(device) })
			ok = ok && do(func() ([]string, error) { return reset.State(c.dirs.State, factory) })
			if ok && factory {
				wipe(&r, c.dirs.State, paths.Config)
			}
			if ok && image {
				signal.Ignore(syscall.SIGHUP) // the session may come by a Wi-Fi that is forgotten
				do(func() ([]string, error) { return firstboot.Forget(device) })
			}
			if err := printCleanup(cmd, c, r); err != nil {
				return err // it stays stopped: half a reset must not become a cluster
			}
			if again && factory && onImage(device.Root) {
				if _, err := firstBoot(device); err != nil { // a new name
					return err
				}
			}
			if again {
				return install.Start(ctx)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&factory, "factory", false, "also remove identity and configuration")
	cmd.Flags().BoolVar(&noStart, "no-start", false, "do not start the service again")
	yesFlag(cmd)
	return withOutput(c, cmd)
}
