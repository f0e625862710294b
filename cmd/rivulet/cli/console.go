package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"rivulet/appliance/api"
	"rivulet/appliance/ui/console"
	"rivulet/appliance/ui/summary"
	"rivulet/appliance/ui/webconsole"
)

const (
	consoleEvery = 2 * time.Second
	// inviteLeft is the least remaining validity of the code on the screen.
	inviteLeft = 2 * time.Minute
)

func newConsole(c *common) *cobra.Command {
	var pair bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "show address, state, problems and a pairing code, as on the device's own screen",
		Long: "A text screen that is updated at each change, until Ctrl-C; Enter shows a pairing code for ten minutes, Enter again a code that signs in to the web console as admin.\n" +
			"If the output is not a terminal, it is printed once.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := &screen{run: c.dirs.Run, out: cmd.OutOrStdout(), pair: pair}
			if !isTerminal(s.out) {
				return s.once(cmd.Context())
			}
			s.pair = s.pair || onDisplay("/proc/self/fd/1")
			return s.loop(cmd.Context(), cmd.InOrStdin())
		},
	}
	cmd.Flags().BoolVar(&pair, "pair", false, "always show a pairing code while a display is connected")
	cmd.AddCommand(newConsoleLogin(c), newConsoleList(c), newConsoleEnd(c))
	return cmd
}

// screen is one terminal.
type screen struct {
	run   string
	out   io.Writer
	pair  bool
	until time.Time // the user has requested a code until then
	made  *api.Invited
	// signIn: the user has requested a code for the web console, by another Enter.
	signIn bool
	login  *webconsole.Login
	shown  []string
}

// once prints the picture for a pipe; an error if there is nothing to show.
func (s *screen) once(ctx context.Context) error {
	st, err := api.Get(ctx, s.run)
	if err != nil {
		return err
	}
	v := summary.Of(st, time.Now())
	rows := console.Draw(&v, "", nil, console.Least)
	_, err = io.WriteString(s.out, strings.Join(rows[:len(rows)-1], "\n")+"\n")
	return err
}

func (s *screen) loop(ctx context.Context, in io.Reader) error {
	keys := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(in); lines.Scan(); {
			select {
			case keys <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		s.draw(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-keys:
			s.press(time.Now())
			s.shown = nil // the key has moved the content of the screen
		case <-time.After(consoleEvery):
		}
	}
}

// press shows a pairing code, or if one is shown a code for the web console, and then a pairing code again.
func (s *screen) press(now time.Time) {
	s.signIn = now.Before(s.until) && !s.signIn
	s.until, s.login = now.Add(webconsole.CodeLife), nil
}

// draw requests the status, and prints only changes: a serial line is slow.
func (s *screen) draw(ctx context.Context) {
	var view *summary.View
	note := "rivulet starts"
	st, err := api.Get(ctx, s.run)
	switch {
	case err == nil:
		v := summary.Of(st, time.Now())
		view = &v
	case !errors.Is(err, api.ErrNotRunning):
		note = err.Error()
	default:
		note = "rivulet is not running yet; if that stays so: journalctl -u rivulet"
	}
	code := s.loginCode(ctx, view)
	if code == nil {
		code = s.invite(ctx, view)
	}
	rows := console.Draw(view, note, code, s.size())
	if slices.Equal(rows, s.shown) {
		return
	}
	s.shown = rows
	io.WriteString(raw(s.out), "\x1b[H"+strings.Join(rows, "\x1b[K\r\n")+"\x1b[K\x1b[J") //nolint:errcheck // the terminal has gone
}

func (s *screen) size() console.Size {
	if f, ok := raw(s.out).(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return console.Size{Columns: w, Rows: h}
		}
	}
	return console.Least
}

// loginCode is the code for the web console to show, while one is wanted and the console is on.
func (s *screen) loginCode(ctx context.Context, v *summary.View) *console.Invite {
	if v == nil || v.Console == "" || !s.signIn || !time.Now().Before(s.until) {
		return nil
	}
	if s.login == nil {
		var made webconsole.Login
		if api.Call(ctx, s.run, http.MethodPost, "/v1/console/codes", map[string]webconsole.Role{"role": webconsole.Admin}, &made) != nil {
			return nil
		}
		s.login, s.until = &made, made.Expires
	}
	out := picture(s.login.Link, s.login.Code, s.login.Expires)
	out.SignIn = s.login.URL
	return out
}

// invite is the code to show; a new one is created when the last was used or ends soon.
func (s *screen) invite(ctx context.Context, v *summary.View) *console.Invite {
	wanted := time.Now().Before(s.until) || s.pair && displayConnected("/sys/class/drm")
	if v == nil || !wanted {
		return nil
	}
	if !s.good(ctx) {
		s.made = nil
		var i api.Invited
		if api.Call(ctx, s.run, http.MethodPost, "/v1/invites", api.Word{}, &i) != nil {
			return nil // the fabric has not started
		}
		s.made = &i
	}
	return picture(s.made.URL, s.made.Code, s.made.Expires)
}

// picture is a code in the screen's form, with a link as QR.
func picture(link, code string, until time.Time) *console.Invite {
	out := &console.Invite{Code: code, Until: until.Local().Format("15:04")}
	if drawn, err := drawQR(link); err == nil {
		out.QR = strings.Split(strings.TrimRight(drawn, "\n"), "\n")
		out.Width = utf8.RuneCountInString(escapes.Replace(out.QR[0]))
	}
	return out
}

// escapes removes the colours of drawQR.
var escapes = strings.NewReplacer("\x1b[30;107m", "", "\x1b[0m", "")

// good reports whether the present code is still valid.
func (s *screen) good(ctx context.Context) bool {
	if s.made == nil {
		return false
	}
	var l api.Invites
	if api.Call(ctx, s.run, http.MethodGet, "/v1/invites", nil, &l) != nil {
		return true // shown unless it is known to be invalid
	}
	for _, i := range l.Invites {
		if i.ID == s.made.ID {
			return i.UsedBy == "" && i.Expires.Sub(l.Now) > inviteLeft && !i.Revoked && !i.Expired
		}
	}
	return false
}

// virtual matches a terminal of the machine's own screen and keyboard.
var virtual = regexp.MustCompile(`^/dev/tty[0-9]+$`)

// onDisplay reports whether an open file is such a terminal, not a serial line.
func onDisplay(fd string) bool {
	tty, err := os.Readlink(fd)
	return err == nil && virtual.MatchString(tty)
}

// displayConnected reports whether a screen is connected; true if that is unknown.
func displayConnected(drm string) bool {
	files, err := filepath.Glob(filepath.Join(drm, "card*-*", "status"))
	if err != nil || len(files) == 0 {
		return true
	}
	for _, f := range files {
		if raw, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(raw)) == "connected" {
			return true
		}
	}
	return false
}
