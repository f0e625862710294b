package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/offload/consumer/volume"
)

func newVolumes(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volumes",
		Short: "list claims whose data are on peers, and data there that no claim here has",
		Long: "Data without a claim are kept: those of claims with reclaim policy Retain, and those that this cluster's datastore does not know, because it was put back (a restore, an undone upgrade, a recovery).\n" +
			"To give them a claim again: rivulet volumes adopt DATA; to delete them: rivulet volumes delete DATA.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := c.volumes(cmd.Context())
			if err != nil {
				return err
			}
			return result(cmd, c, v, printVolumes)
		},
	}
	cmd.AddCommand(newVolumesAdopt(c), newVolumesDelete(c))
	return withOutput(c, cmd)
}

func (c *common) volumes(ctx context.Context) (v volume.View, err error) {
	err = api.Call(ctx, c.dirs.Run, http.MethodGet, "/v1/volumes", nil, &v)
	return v, err
}

func printVolumes(out io.Writer, v volume.View) error {
	err := table(out, "no claim has its data on a peer", "CLAIM\tON\tSIZE", v.Away, func(a volume.Away) []any { return []any{a.Claim, a.On, a.Size} })
	if err == nil && len(v.Kept) > 0 {
		fmt.Fprintln(out, "\nkept, without a claim here; for each: rivulet volumes adopt DATA, or rivulet volumes delete DATA")
		err = table(out, "", "DATA\tMADE FOR\tSIZE\tWHY", v.Kept, func(k volume.Kept) []any { return []any{k.Ref, k.Claim, k.Size, k.Why} })
	}
	if err == nil && len(v.Silent) > 0 {
		fmt.Fprintf(out, "\nnot asked for what is kept there, as it does not answer: %s\n", strings.Join(v.Silent, ", "))
	}
	return err
}

var oneKept = takes(1, "%[1]s takes what rivulet volumes lists below DATA, for example: rivulet volumes %[1]s lab-2/lab/db-1a2b3c4d; see: %[2]s --help")

func newVolumesAdopt(c *common) *cobra.Command {
	var as string
	cmd := &cobra.Command{
		Use: "adopt DATA", Short: "give data on a peer a claim here again", Args: oneKept,
		Long: "DATA is what rivulet volumes lists. The claim has the name that the data were made for, or the one of --as. The data stay where they are, and pods that use the claim run there; to bring them home: rivulet move volume NAMESPACE/CLAIM home.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var claim string
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/volumes/adopt", api.KeptVolume{Ref: args[0], As: as}, &claim); err != nil {
				return err
			}
			return printf(cmd, "claim %s has the data; see: kubectl describe pvc -n %s\n", claim, strings.Replace(claim, "/", " ", 1))
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "name of the claim")
	return cmd
}

func newVolumesDelete(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete DATA", Short: "delete data on a peer that no claim here has", Args: oneKept,
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := c.volumes(cmd.Context())
			kept := keptRefs(v)
			if on, _, _ := strings.Cut(args[0], "/"); err == nil && slices.Contains(v.Silent, on) {
				kept = append(kept, args[0]) // it says itself what it has, when it can be reached
			}
			if err := known("data without a claim", args[0], "rivulet volumes", kept, err); err != nil {
				return err
			}
			if err := confirm(cmd, "delete the data of "+args[0]+" for good", ""); err != nil {
				return err
			}
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/volumes/delete", api.KeptVolume{Ref: args[0]}, nil); err != nil {
				return err
			}
			return printf(cmd, "%s is being deleted\n", args[0])
		},
	}
	yesFlag(cmd)
	return cmd
}

// keptNames are the data that no claim has.
func (c *common) keptNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	v, err := c.volumes(ctx)
	return keptRefs(v), err
}

// keptRefs are the names of the data that no claim has, of those that could be asked.
func keptRefs(v volume.View) (out []string) {
	for _, k := range v.Kept {
		out = append(out, k.Ref)
	}
	return out
}
