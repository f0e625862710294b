package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/ui/webconsole"
)

func newConsoleLogin(c *common) *cobra.Command {
	var role string
	cmd := &cobra.Command{
		Use:   "login",
		Short: "print a code that signs a browser on the LAN in to the web console, once, within ten minutes",
		Long: "Roles: view reads; operate decides about peers, offloading and virtual clusters; admin has all rights of root here.\n" +
			"A browser cannot verify the device's certificate and warns: compare the fingerprint. rivulet console list shows who is signed in.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var made webconsole.Login
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/console/codes", map[string]string{"role": role}, &made); err != nil {
				return err
			}
			return result(cmd, c, made, func(out io.Writer, made webconsole.Login) error {
				if drawn, err := drawQR(made.Link); err == nil && isTerminal(out) {
					fmt.Fprintln(raw(out), drawn)
				}
				_, err := fmt.Fprintf(out, "at %s, as %s, until %s, once:\n\n  %s\n\nas a link: %s\nthe certificate's SHA-256: %s\n",
					made.URL, made.Role, moment(made.Expires), made.Code, made.Link, made.Fingerprint)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&role, "role", string(webconsole.Admin), "view, operate or admin")
	return withOutput(c, cmd)
}

func newConsoleList(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "list", Short: "list the browsers that are signed in to the web console", Args: noArgs,
		RunE: get(c, "/v1/console/sessions", func(out io.Writer, l webconsole.Sessions, _ bool) error {
			return table(out, "no browser is signed in; make a code with: sudo rivulet console login", "ID\tROLE\tBROWSER\tFROM\tSIGNED IN\tLAST USED", l.Sessions, func(s webconsole.Session) []any {
				return []any{s.ID, s.Role, s.Browser, s.From, moment(s.Made), moment(s.Seen)}
			})
		}),
	})
}

func newConsoleEnd(c *common) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "end ID | end --all", Short: "end a browser's sign-in at once",
		Args: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == all || len(args) > 1 {
				return usagef("end takes one ID, or --all; see: rivulet console list, and: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/v1/console/sessions"
			if len(args) == 1 {
				path = "/v1/console/sessions/" + url.PathEscape(args[0])
			}
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodDelete, path, nil, nil); err != nil {
				return err
			}
			return printf(cmd, "ended\n")
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "end all sign-ins")
	return cmd
}
