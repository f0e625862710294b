package cli

import (
	"github.com/spf13/cobra"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/lifetime/install"
	"rivulet/appliance/lifetime/reset"
	"rivulet/appliance/state/paths"
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
			question := "all pods, volumes and objects of this cluster are lost, and its peers forgotten" + c.whatThereIs(cmd.Context())
			if sql, err := datastore.LoadSQLCluster(c.dirs.State); err == nil && sql.Database != "" {
				question += ". The objects stay in " + sql.Database + ", which this device uses again only after they were deleted there"
			}
			if factory {
				question += ". Its identity and its configuration are lost, too"
			}
			if err := confirm(cmd, question); err != nil {
				return err
			}
			ctx := cmd.Context()
			again := install.HaveSystemd() && install.Installed() && install.IsActive(ctx) && !noStart
			told := goodbye(ctx, c)
			r := end(ctx, c, engineName)
			sayTold(&r, told)
			removed, err := reset.State(c.dirs.State, factory)
			r.Removed = append(r.Removed, removed...)
			if err != nil {
				r.Left = append(r.Left, err.Error())
			}
			if factory {
				wipe(&r, c.dirs.State, paths.Config)
			}
			if err := printCleanup(cmd, c, r); err != nil {
				return err // it stays stopped: half a reset must not become a cluster
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
