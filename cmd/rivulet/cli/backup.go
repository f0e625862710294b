package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance"
	"rivulet/appliance/api"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/vcluster"
	"rivulet/appliance/version"
)

func newBackup(c *common) *cobra.Command {
	var volumes, force bool
	var passphrase string
	cmd := &cobra.Command{
		Use:   "backup FILE|-",
		Short: "save the whole cluster into one file (- is standard output), which contains private keys",
		Long: "Saves the cluster's objects, keys, peers and /etc/rivulet, running or stopped. Images are\n" +
			"not included, nor are objects in an SQL server; local volumes only with --volumes (copied file by file while pods write). The control plane of an awake virtual cluster\n" +
			"is stopped for about a second; requests wait meanwhile. The file gives full access to the cluster: protect it like a key, or encrypt it with --passphrase-file.",
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			src, done, err := source(cmd.Context(), c.dirs)
			if err != nil {
				return err
			}
			defer done()
			src.Volumes = volumes
			if sql, err := datastore.LoadSQLCluster(c.dirs.State); err == nil && sql.Database != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: the cluster's objects are not in it: save %s there, about now\n", sql.Database)
			}
			src.LeftOut = func(what, why string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s is not in it: %s\n", what, why)
			}
			if src.Passphrase, err = readPassphrase(passphrase); err != nil {
				return err
			}
			return save(cmd, c, src, args[0], force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing file, after the backup is complete")
	cmd.Flags().BoolVar(&volumes, "volumes", false, "local volumes too")
	cmd.Flags().StringVar(&passphrase, "passphrase-file", "", "encrypt with the passphrase on the first line of this file")
	return withOutput(c, cmd)
}

func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] == "" {
		args = nil
	}
	return takes(1, "%[1]s takes one file, or - for a stream; see: %[2]s --help")(cmd, args)
}

// source uses the supervisor, or opens the store itself if there is none.
func source(ctx context.Context, dirs appliance.Dirs) (src backup.Source, done func(), err error) {
	if _, err := backup.Finish(dirs.State); err != nil {
		return src, nil, err
	}
	src.Paths = backup.DefaultPaths(dirs.State)
	src.Manifest = backup.Manifest{Format: backup.Format, Arch: runtime.GOARCH, Created: time.Now().UTC().Truncate(time.Second)}
	m := &src.Manifest
	var facts api.Facts
	switch err := api.Call(ctx, dirs.Run, "GET", "/v1/facts", nil, &facts); {
	case err == nil:
		m.Name, m.Node, m.ID, m.Rivulet, m.Kubernetes = facts.Name, facts.NodeName, string(facts.ID), facts.Version, facts.Kubernetes
		from := func(method, path string) func(io.Writer) error {
			return func(w io.Writer) error {
				resp, err := api.Do(ctx, dirs.Run, method, path, nil)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				_, err = io.Copy(w, resp.Body)
				return err
			}
		}
		src.CopyStore, src.VClusters = from("GET", "/v1/store"), from("POST", "/v1/vclusters/backup")
		return src, func() {}, nil
	case !errors.Is(err, api.ErrNotRunning):
		return src, nil, err
	}
	src, done, err = backup.Stopped(dirs.State)
	if err != nil {
		return src, nil, err
	}
	src.Manifest.Rivulet, src.Manifest.Kubernetes = version.Version, version.Kubernetes()
	src.VClusters = func(w io.Writer) error {
		return vcluster.BackupStopped(ctx, dirs.State, dirs.Run, w, false, slog.New(slog.DiscardHandler))
	}
	return src, done, nil
}

// save writes to a file or to standard output.
func save(cmd *cobra.Command, c *common, src backup.Source, name string, force bool) error {
	terminal := usagef("a backup is not for a terminal; send it somewhere, for example: rivulet backup - | ssh HOST 'cat > backup'")
	err := saveTo(cmd, name, force, terminal, "writing the backup", func(w io.Writer) error {
		if f, ok := w.(backup.File); ok && name != "-" {
			return backup.WriteFile(cmd.Context(), f, src)
		}
		return backup.Write(cmd.Context(), w, src)
	})
	if err == nil {
		noteBackup(cmd, c, src.Manifest.Created)
	}
	if err != nil || name == "-" {
		return err
	}
	fi, err := os.Stat(name)
	if err != nil {
		return err
	}
	size := fi.Size()
	if c.forProgram() {
		return c.print(cmd.OutOrStdout(), struct {
			File  string `json:"file"`
			Bytes int64  `json:"bytes"`
			backup.Manifest
		}{name, size, src.Manifest})
	}
	secret := "it holds the cluster's private keys in the clear"
	if src.Passphrase != "" {
		secret = "it is encrypted; without the passphrase it is worth nothing"
	}
	return printf(cmd, "%s: cluster %s, %.1f MB; %s\n", name, src.Manifest.Name, float64(size)/1e6, secret)
}

// noteBackup stores for which backup the device needs no reminder yet.
func noteBackup(cmd *cobra.Command, c *common, made time.Time) {
	if err := (backup.Last{Made: made}).Save(c.dirs.State); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", err)
	}
}

// readPassphrase returns the first line of a file; no file is no passphrase.
func readPassphrase(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("passphrase: %w; see --passphrase-file", err)
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	if line = strings.TrimRight(line, "\r"); line == "" {
		return "", fmt.Errorf("passphrase: the first line of %s is empty; write the passphrase there", file)
	}
	return line, nil
}
