package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/config"
	"rivulet/appliance/config/signin"
	"rivulet/appliance/lifetime/firstboot"
	"rivulet/appliance/ui/webconsole"
	"rivulet/image/flash"
	"rivulet/image/signed"
)

func newFlash(c *common) *cobra.Command {
	var o struct {
		list, unsigned, internal bool
		config, name, network    string
	}
	cmd := &cobra.Command{
		Use:   "flash IMAGE DEVICE",
		Short: "write a device image to a card or disk",
		Long: "IMAGE is a device image (.img or .img.zst) with its .sig beside it, and optionally its .bmap. Signature and content are\n" +
			"checked before anything is written; mounted disks and the system's own are refused. The command shows what is on DEVICE, requires\n" +
			"confirmation (of an internal disk by its name), writes, and reads back what it wrote. All data on DEVICE are lost. --config copies\n" +
			"a rivulet.yaml to it, --network a folder with files of systemd-networkd and iwd: static addresses, VLANs, eduroam.\n" +
			"The device gets a name, which is asked for on a terminal and made otherwise, and a code that signs in to its web console: the\n" +
			"command prints both at its end, with the addresses. The card has a hash of the code only.",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.list && len(args) > 0:
				return usagef("flash --list takes no argument, yet was given %q; see: %s --help", args[0], cmd.CommandPath())
			case !o.list && len(args) != 2:
				return usagef("flash takes an image and a disk (see the disks: rivulet flash --list); see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.list {
				return listDisks(cmd, c)
			}
			given, err := deviceConfig(o.config)
			if err != nil {
				return err
			}
			card, err := newCard(cmd, given, o.name)
			if err == nil {
				card.networks, err = deviceNetworks(o.network, given)
			}
			if err != nil {
				return err
			}
			trust := flash.Trust{Unsigned: o.unsigned}
			if trust.Trust, err = signed.Linked(); err != nil && !errors.Is(err, signed.ErrNoRoots) {
				return err
			}
			return flashDisk(cmd, c, args[0], args[1], trust, card, o.internal)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.list, "list", false, "list the disks of this machine, with the reason if one is refused")
	yesFlag(cmd)
	f.BoolVar(&o.internal, "internal", false, "with --yes: write an internal disk, too")
	f.BoolVar(&o.unsigned, "unsigned", false, "accept an image without a signature")
	f.StringVar(&o.config, "config", "", "a rivulet.yaml for the device's boot partition")
	f.StringVar(&o.network, "network", "", "a folder with network settings (.network, .netdev, .8021x, .psk, .open, certificates) for the boot partition")
	f.StringVar(&o.name, "name", "", "the device's name on the LAN; default: that of --config, or asked for, or made")
	return withOutput(c, cmd)
}

// deviceConfig reads the file for the device, and checks it as the device will: a device without a screen cannot show
// mistakes.
func deviceConfig(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w; name a rivulet.yaml", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, flash.MaxConfig+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; name a rivulet.yaml", err)
	case len(raw) == 0 || len(raw) > flash.MaxConfig:
		return nil, fmt.Errorf("%s is empty or larger than %d bytes; name a rivulet.yaml", path, flash.MaxConfig)
	}
	if _, p := config.ParseCard(raw, config.Options{File: path}); len(p.Problems) > 0 {
		return nil, fmt.Errorf("%w (%d in all); correct it first, nothing was written", p.Problems[0], len(p.Problems))
	}
	return raw, nil
}

// deviceNetworks reads a folder for the device, and checks it as the device will, which has a rivulet.yaml or none.
func deviceNetworks(dir string, given []byte) (map[string][]byte, error) {
	if dir == "" {
		return nil, nil
	}
	has, _ := config.ParseCard(given, config.Options{File: config.CardName})
	files, problems, err := firstboot.NetworkFiles(dir, has.WiFi)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; name a folder with network settings", err)
	case len(files) == 0 && len(problems) == 0:
		return nil, usagef("the folder %s has no file; put network settings into it, or leave out --network", dir)
	case len(problems) > 0:
		return nil, fmt.Errorf("%w (%d in all); correct it first, nothing was written", problems[0], len(problems))
	}
	return files, nil
}

// card is the rivulet.yaml of a device, and what its owner has to know.
type card struct {
	content  []byte
	networks map[string][]byte
	Name     string `json:"name"`
	Address  string `json:"address"`
	Console  string `json:"console"`
	// Code signs in to the web console; empty if the given file has the hash of another one.
	Code string `json:"code,omitempty"`
}

// newCard adds a name and a sign-in code to the given file, which is checked.
func newCard(cmd *cobra.Command, given []byte, name string) (card, error) {
	_, was := config.ParseCard(given, config.Options{File: config.CardName})
	has := was.Config.Name
	switch {
	case has != "" && name != "" && name != has:
		return card{}, usagef("the file of --config names the device %s; leave out --name, or change the file", has)
	case has != "":
		name = has
	case name == "" && isTerminal(cmd.InOrStdin()) && !cmd.Flags().Changed("yes"):
		name = queryName(cmd.InOrStdin(), cmd.ErrOrStderr(), flash.NewName(false))
	case name == "":
		name = flash.NewName(true)
	}
	if err := config.CheckName(name); err != nil {
		return card{}, usagef("--name: %w", err)
	}
	k := card{content: given, Name: name, Address: "http://" + name + ".local", Console: fmt.Sprintf("https://%s.local:%d", name, webconsole.Port)}
	var keys [][2]string
	if has == "" {
		keys = append(keys, [2]string{"name", name})
	}
	if was.Config.ConsoleCode == "" {
		code := signin.New()
		k.Code, keys = code.String(), append(keys, [2]string{"consoleCode", code.Hash()})
	}
	if len(keys) > 0 {
		k.content = config.AddToCard(given, keys...)
	}
	_, now := config.ParseCard(k.content, config.Options{File: config.CardName})
	if len(now.Problems) > 0 || now.Config.Name != name || now.Config.ConsoleCode == "" || len(k.content) > flash.MaxConfig {
		return card{}, fmt.Errorf("name and code cannot be added to the file of --config; write name: %s into it yourself, on a line of its own, in a file of less than %d bytes", name, flash.MaxConfig)
	}
	return k, nil
}

// queryName reads a name from a terminal, until it is valid; no answer is the proposed one.
func queryName(in io.Reader, out io.Writer, proposed string) string {
	for lines := bufio.NewScanner(in); ; {
		fmt.Fprintf(out, "name [%s]: ", proposed)
		if !lines.Scan() {
			return proposed
		}
		name := strings.ToLower(strings.TrimSpace(lines.Text()))
		if name == "" {
			return proposed
		}
		err := config.CheckName(name)
		if err == nil {
			return name
		}
		fmt.Fprintln(out, err)
	}
}

func listDisks(cmd *cobra.Command, c *common) error {
	disks, err := flash.Here().List()
	if err != nil {
		return err
	}
	return result(cmd, c, disks, func(out io.Writer, disks []flash.Disk) error {
		return table(out, "no disks; plug a card in and look again", "DEVICE\tSIZE\tKIND\tMODEL\tCONTENT\tNOT WRITTEN BECAUSE", disks, func(d flash.Disk) []any {
			return []any{d.Path, flash.Bytes(d.Size), kind(d), d.Model, d.Content, d.Refused}
		})
	})
}

func kind(d flash.Disk) string {
	switch {
	case d.Removable:
		return "removable"
	case d.Internal():
		return "internal"
	}
	return "file"
}

// confirmDisk asks before a disk is written: for an internal one, which may be another system's, the answer is its name.
func confirmDisk(cmd *cobra.Command, d flash.Disk, question, what string, internal bool) error {
	yes, err := cmd.Flags().GetBool("yes")
	switch {
	case err != nil:
		return err
	case !d.Internal() || yes && internal:
		return confirm(cmd, question, what)
	case yes || !isTerminal(cmd.InOrStdin()):
		line := strings.NewReplacer(" --yes", "", " --internal", "").Replace(again(cmd))
		return usagef("%s? %s Nothing was done; it is an internal disk, whose name a terminal is asked for: without that, add --internal and --yes: %s --internal --yes", question, sentence(what), line)
	}
	return typed(cmd, question+"? "+sentence(what+". It is an internal disk of this machine"), filepath.Base(d.Path))
}

func flashDisk(cmd *cobra.Command, c *common, path, device string, trust flash.Trust, k card, internal bool) error {
	// The disk first: it is checked at once, the image takes longer.
	d, err := flash.Here().Disk(device)
	if err != nil {
		return err
	}
	if err := (&flash.Image{}).Fits(d); err != nil {
		return err
	}
	show := newMeter(cmd.ErrOrStderr())
	m, err := flash.Open(cmd.Context(), path, trust, show.progress)
	show.end()
	if err != nil {
		return err
	}
	if err := m.Fits(d); err != nil {
		return err
	}
	content := ""
	if d.Content != "" {
		content = ": " + d.Content
	}
	question := fmt.Sprintf("write %s to %s, for device %s", path, d.Path, k.Name)
	what := fmt.Sprintf("everything on %s (%s, %s, %s) is lost%s", d.Path, d.Model, flash.Bytes(d.Size), kind(d), content)
	if !m.Signed {
		what = "NOBODY SIGNED this image. " + what
	}
	if err := confirmDisk(cmd, d, question, what, internal); err != nil {
		return err
	}
	files := map[string][]byte{config.CardName: k.content}
	for name, content := range k.networks {
		files[firstboot.NetworkFolder+"/"+name] = content
	}
	r, err := flash.Write(cmd.Context(), m, d, files, show.progress)
	show.end()
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("stopped by hand: %w", err)
	}
	if err != nil {
		return err
	}
	return result(cmd, c, flashed{r, k}, printFlashed)
}

// flashed is the result for programs.
type flashed struct {
	flash.Result
	card
}

func printFlashed(out io.Writer, f flashed) error {
	fmt.Fprintf(out, "%s is written and was read back (%s in %s). Take it out (if your desktop shows it, eject it first), put it into the device and switch that on.\n",
		f.Device, flash.Bytes(f.Written), f.Took.Round(time.Second))
	if f.Unused > 0 {
		fmt.Fprintf(out, "The device does not use the last %s of it: the partition table of a Raspberry Pi counts to 2 TiB.\n", flash.Bytes(f.Unused))
	}
	code := f.Code + "  signs in there; it is shown only now"
	if f.Code == "" {
		code = "that of --config"
	}
	return pairs(out, [][2]string{{"name", f.Name}, {"address", f.Address}, {"console", f.Console}, {"code", code}})
}
