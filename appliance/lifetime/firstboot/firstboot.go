// Package firstboot configures a device from its image: `rivulet firstboot`, at each boot, before rivulet itself
// (docs/design/firstboot.md). It reads the optional rivulet.yaml and folder network on the boot partition, and alone
// writes what they contain (configuration, secrets, networks, SSH keys, host name), the note <state>/firstboot.json,
// rivulet.yaml.error.txt and network.error.txt. Restart, power cut: each step is one write and may be repeated; secrets leave the card before
// the note, which is last. Failure: the valid parts of the file are applied, and the device boots in any case; secrets
// stay on the card while the data partition cannot be used.
package firstboot

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"rivulet/appliance/config"
	"rivulet/appliance/machine/host"
	"rivulet/image/device/layout"
)

// Paths on a device.
const (
	NotePath     = "/var/lib/rivulet/firstboot.json"
	secretPath   = "/etc/rivulet/group.secret"
	keysPath     = "/root/.ssh/authorized_keys"
	hostnamePath = "/etc/hostname"
	hostsPath    = "/etc/hosts"
	wifiDir      = "/var/lib/iwd"
	radioPath    = "/etc/iwd/main.conf"
	// radioBase has the image's settings of iwd, which reads one file only.
	radioBase = "/usr/lib/rivulet/iwd.conf"
	// ErrorName is the file on the boot partition with the errors of the card's file.
	ErrorName = config.CardName + ".error.txt"
)

// unread is no file's digest: the next readable file is applied.
const unread = "unread"

// maxCard is far beyond the size of any real file, bytes.
const maxCard = 64 << 10

// Note records what was done.
type Note struct {
	// Card is the digest of the file as it was left, empty for none.
	Card string `json:"card,omitempty"`
	// Config is the digest of the configuration derived from it.
	Config   string `json:"config,omitempty"`
	Hostname string `json:"hostname"`
	// Country is the radio's, Radio the digest of iwd's settings as they were written.
	Country string `json:"country,omitempty"`
	Radio   string `json:"radio,omitempty"`
	// Files were written because of the card, and are removed when a later card lacks them.
	Files    []string        `json:"files,omitempty"`
	Problems config.Problems `json:"problems,omitempty"`
	Network  Networks        `json:"network,omitzero"`
}

// All returns the problems of the card's file and of its folder of networks.
func (n Note) All() config.Problems { return slices.Concat(n.Problems, n.Network.Problems) }

// Device has the places to work on.
type Device struct {
	// Root is / on a device.
	Root string
	// Boot is the boot partition's folder, below Root.
	Boot string
	// Open makes the boot partition writable; shut makes it read-only again.
	Open func() (shut func(), err error)
}

// Read returns the note, the zero Note before the first boot.
func Read(root string) (n Note, err error) {
	raw, err := disk{root}.read(NotePath)
	if err != nil || raw == nil {
		return n, err
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return Note{}, nil //nolint:nilerr // an unreadable note counts as none: all is repeated
	}
	return n, nil
}

// Run applies the card's file. The Note has the file's errors; the returned error means that the device cannot be
// written.
func Run(dev Device) (Note, error) {
	d := disk{dev.Root}
	was, err := Read(dev.Root)
	if err != nil {
		return was, fmt.Errorf("firstboot: %w; look at the data partition", err)
	}
	b := &boot{dev: dev, disk: d, was: was}
	if err := b.run(); err != nil {
		return b.now, fmt.Errorf("firstboot: %w; look at the data partition: rivulet doctor", err)
	}
	return b.now, nil
}

type boot struct {
	dev    Device
	disk   disk
	was    Note
	now    Note
	taken  string   // the name of the file that was read
	others []string // files that were to be the card's, and are not read
}

func (b *boot) card(name string) string { return filepath.Join(b.dev.Boot, name) }

func (b *boot) run() error {
	raw, err := b.readCard()
	if err != nil { // a damaged partition must not prevent the boot
		b.now = b.was
		b.now.Card = unread
		b.now.Problems = config.Problems{{File: config.CardName, Text: "it cannot be read: " + err.Error(), Cure: "repair the boot partition in a PC, or flash the card again"}}
		return b.finish()
	}
	switch {
	case b.was.Hostname == "":
	case raw == nil: // the file was deleted: keep the Wi-Fi
		b.now = b.was
		b.now.Problems = nil
		if err := b.name(b.was.Hostname); err != nil {
			return err
		}
		return b.finish()
	case digest(raw) == b.was.Card && b.taken == config.CardName && len(b.others) == 0:
		b.now = b.was
		if err := b.name(b.was.Hostname); err != nil {
			return err
		}
		return b.finish()
	}
	parsedCard, parsed := config.Card{}, config.Parsed{}
	if raw != nil {
		parsedCard, parsed = config.ParseCard(raw, config.Options{File: config.CardName})
	}
	b.now.Problems = parsed.Problems
	for _, name := range b.others {
		b.now.Problems = append(b.now.Problems, config.Problem{File: name, Text: "it is not read, because " + config.CardName + " is there, too", Cure: "keep the one that is right, with the name " + config.CardName + ", and remove the other"})
	}
	if err := b.apply(parsedCard, parsed); err != nil {
		return err
	}
	left, err := b.leave(raw, parsedCard, parsed)
	if err != nil {
		b.problem("", "the boot partition cannot be written to: "+err.Error(), "remove the secrets from "+cmp.Or(b.taken, config.CardName)+" yourself; the device has them")
		left = raw
	}
	b.now.Card = digest(left)
	if len(b.others) > 0 {
		b.now.Card = unread // once they are gone, nothing is to be said of them
	}
	return b.finish()
}

func (b *boot) problem(key, text, cure string) {
	b.now.Problems = append(b.now.Problems, config.Problem{File: config.CardName, Key: key, Text: text, Cure: cure})
}

// readCard finds the file, also after an interrupted replacement, and by a name that a PC made of its own.
func (b *boot) readCard() ([]byte, error) {
	b.others = b.misnamed()
	// FAT renames in two steps: between them only the new file exists.
	for _, name := range append([]string{config.CardName, config.CardName + ".new"}, b.others...) {
		raw, err := b.disk.read(b.card(name))
		switch {
		case err != nil:
			return nil, err
		case raw == nil || len(raw) == 0 && name != config.CardName:
			continue
		case len(raw) > maxCard:
			return nil, errors.New("it is longer than 64 KiB")
		}
		b.taken = name
		b.others = slices.DeleteFunc(b.others, func(other string) bool { return other == name })
		return raw, nil
	}
	return nil, nil
}

// misnamed returns the files that were to be the card's: Windows hides the endings of names, and its editor adds .txt.
func (b *boot) misnamed() (names []string) {
	entries, _ := os.ReadDir(b.disk.path(b.dev.Boot)) // without the partition there are none
	for _, e := range entries {
		if name := strings.ToLower(e.Name()); name != config.CardName && cardLike.MatchString(name) && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names
}

var cardLike = regexp.MustCompile(`^rivulet\.ya?ml(\.(yaml|yml|txt))*$`)

// apply writes everything to its place.
func (b *boot) apply(card config.Card, parsed config.Parsed) error {
	hostname := cmp.Or(parsed.Config.Name, b.was.Hostname, born())
	b.now.Hostname = hostname
	if err := b.name(hostname); err != nil {
		return err
	}
	for _, part := range []func() error{
		func() error { return b.secret(parsed) },
		func() error { return b.wifi(card) },
		func() error { return b.ssh(card) },
		func() error { return b.config(card, parsed) },
		b.forget,
	} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func born() string {
	raw := make([]byte, 5)
	rand.Read(raw) // never fails
	return "rivulet-" + strings.ToLower(base32.StdEncoding.EncodeToString(raw))[:6]
}

// name sets the host's name, unless the operator has changed it since.
func (b *boot) name(hostname string) error {
	has, err := b.disk.read(hostnamePath)
	if err != nil {
		return err
	}
	if now := strings.TrimSpace(string(has)); now != "" && now != b.was.Hostname && b.was.Hostname != "" && hostname == b.was.Hostname {
		return nil
	}
	if host.Name(hostname) != hostname {
		return fmt.Errorf("%q cannot be a host's name", hostname)
	}
	if err := b.disk.write(hostnamePath, []byte(hostname+"\n"), 0o644); err != nil {
		return err
	}
	if has, err = b.disk.read(hostsPath); err != nil {
		return err
	}
	return b.disk.write(hostsPath, []byte(hosts(string(has), hostname)), 0o644)
}

// hosts returns the file of names with this device's. Lines of the owner stay: a NAS, a registry.
func hosts(has, hostname string) string {
	own := []string{"127.0.0.1 localhost", "127.0.1.1 " + hostname, "::1 localhost ip6-localhost ip6-loopback"}
	lines := slices.Clone(own)
	for line := range strings.Lines(has) {
		line = strings.TrimRight(line, "\r\n")
		if f := strings.Fields(line); !slices.Contains(own, line) && (len(f) == 0 || f[0] != "127.0.1.1") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// keep records a file of the card, and writes it.
func (b *boot) keep(name string, data []byte) error {
	b.now.Files = append(b.now.Files, name)
	return b.disk.write(name, data, 0o600)
}

// stays records a file whose content was removed from the card at an earlier boot. It reports whether the device has
// it.
func (b *boot) stays(name string) bool {
	if raw, err := b.disk.read(name); err != nil || raw == nil {
		return false
	}
	b.now.Files = append(b.now.Files, name)
	return true
}

func (b *boot) secret(parsed config.Parsed) error {
	switch secret := parsed.Config.Trust.Secret; {
	case secret == "" || parsed.Config.Trust.SecretFile != "":
		return nil
	case secret == config.Moved:
		if !b.stays(secretPath) {
			b.problem("trust.secret", "the group's secret was moved into another device, and this one does not have it", "write the secret again")
		}
		return nil
	default:
		return b.keep(secretPath, []byte(secret.Reveal()+"\n"))
	}
}

func (b *boot) wifi(card config.Card) error {
	for _, w := range card.WiFi {
		name, data := network(w)
		if w.Password == config.Moved {
			if !b.stays(name) {
				b.problem("wifi.networks", fmt.Sprintf("the password of the network %q was moved into another device, and this one does not have it", w.SSID), "write the password again")
			}
			continue
		}
		if err := b.keep(name, data); err != nil {
			return err
		}
	}
	b.now.Country = card.Country
	return nil
}

// radio writes iwd's settings anew: an upgrade may bring others. A file that somebody has changed stays.
func (b *boot) radio() error {
	text, err := b.disk.read(radioBase)
	if err != nil {
		return err
	}
	if b.now.Country != "" {
		text = append([]byte("[General]\nCountry="+b.now.Country+"\n"), text...)
	}
	text = append([]byte("# Written by rivulet firstboot at each boot, until somebody changes it.\n"), text...)
	has, err := b.disk.read(radioPath)
	if err != nil {
		return err
	}
	if has != nil && b.was.Radio != "" && digest(has) != b.was.Radio && !bytes.Equal(has, text) {
		b.now.Radio = b.was.Radio
		return nil
	}
	b.now.Radio = digest(text)
	return b.disk.write(radioPath, text, 0o644)
}

// ssidFile is the name of iwd's file of a network, without its kind.
func ssidFile(ssid string) string {
	if strings.ContainsFunc(ssid, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-", r)
	}) {
		return "=" + hex.EncodeToString([]byte(ssid))
	}
	return ssid
}

// network is a file of iwd: its name contains the network and its kind.
func network(w config.WiFi) (name string, data []byte) {
	var text strings.Builder
	ext := ".psk"
	switch p := w.Password.Reveal(); {
	case p == "":
		ext = ".open"
	case len(p) == 64:
		text.WriteString("[Security]\nPreSharedKey=" + strings.ToLower(p) + "\n")
	default:
		p = strings.ReplaceAll(p, `\`, `\\`)
		if trimmed := strings.TrimLeft(p, " "); trimmed != p {
			p = strings.Repeat(`\s`, len(p)-len(trimmed)) + trimmed
		}
		text.WriteString("[Security]\nPassphrase=" + p + "\n")
	}
	if w.Hidden {
		text.WriteString("[Settings]\nHidden=true\n")
	}
	return filepath.Join(wifiDir, ssidFile(w.SSID)+ext), []byte(text.String())
}

func (b *boot) ssh(card config.Card) error {
	if len(card.SSHKeys) == 0 {
		return nil
	}
	return b.keep(keysPath, []byte("# Written by rivulet firstboot out of "+config.CardName+" on the boot partition.\n"+strings.Join(card.SSHKeys, "\n")+"\n"))
}

// config writes the device's configuration, unless the operator has changed it there.
func (b *boot) config(card config.Card, parsed config.Parsed) error {
	used := map[string]bool{}
	text := card.Good(parsed, secretPath, func(name string) string {
		used[name] = true
		return filepath.Join(filepath.Dir(config.DefaultPath), name)
	})
	for name := range used {
		to := filepath.Join(filepath.Dir(config.DefaultPath), name)
		raw, err := b.disk.read(b.card(name))
		switch {
		case err != nil || raw == nil:
			if !b.stays(to) {
				b.problem("burst", "there is no file "+name+" beside "+config.CardName, "put the kubeconfig of that cluster there")
			}
		default:
			if err := b.keep(to, raw); err != nil {
				return err
			}
		}
	}
	has, err := b.disk.read(config.DefaultPath)
	if err != nil {
		return err
	}
	if text != nil {
		text = append([]byte("# Written by rivulet firstboot out of "+config.CardName+" on the boot partition. After a change here\n# that file does not change this one any more.\n"), text...)
	}
	if has != nil && digest(has) != b.was.Config && !bytes.Equal(has, text) {
		b.now.Config = b.was.Config
		if text != nil {
			b.problem("", "its configuration is not taken, because "+config.DefaultPath+" was changed on the device", "change it there, or remove it there and start the device again")
		}
		return nil
	}
	b.now.Config = digest(text)
	if text == nil {
		return b.disk.remove(config.DefaultPath)
	}
	return b.disk.write(config.DefaultPath, text, 0o600)
}

// forget removes files of an earlier card that this one lacks.
func (b *boot) forget() error {
	for _, old := range b.was.Files {
		if !slices.Contains(b.now.Files, old) {
			if err := b.disk.remove(old); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave writes errors to the boot partition and removes secrets from it. It returns the new content of the card's file.
func (b *boot) leave(raw []byte, card config.Card, parsed config.Parsed) (left []byte, err error) {
	emptied := card.Emptied(parsed)
	files := b.now.Files
	if failed, err := b.disk.read(layout.DataFailed); err == nil && failed != nil {
		// The device's own copies are in memory: only the card's last.
		emptied, files = nil, nil
	}
	var gone []string
	for _, f := range files {
		name := filepath.Base(f)
		if filepath.Dir(f) == filepath.Dir(config.DefaultPath) && f != secretPath {
			if has, _ := b.disk.read(b.card(name)); has != nil {
				gone = append(gone, name)
			}
		}
	}
	said, err := b.disk.read(b.card(ErrorName))
	if err != nil {
		return raw, err
	}
	fresh, _ := b.disk.read(b.card(config.CardName + ".new"))
	errors := explain(config.CardName+". Everything else in it was taken", b.now.Problems)
	renamed := raw != nil && b.taken != config.CardName
	if emptied == nil && len(gone) == 0 && bytes.Equal(said, errors) && fresh == nil && !renamed {
		return raw, nil
	}
	if b.dev.Open != nil {
		shut, err := b.dev.Open()
		if err != nil {
			return raw, err
		}
		defer shut()
	}
	if renamed { // before a new file is written: it is the only copy
		if err := b.disk.rename(b.card(b.taken), b.card(config.CardName)); err != nil {
			return raw, err
		}
	}
	if errors == nil {
		err = b.disk.remove(b.card(ErrorName))
	} else {
		err = b.disk.write(b.card(ErrorName), errors, 0o644)
	}
	if err != nil {
		return raw, err
	}
	left = raw
	if emptied != nil {
		left = emptied
	}
	if left != nil {
		if err := b.disk.write(b.card(config.CardName), left, 0o644); err != nil {
			return raw, err
		}
	}
	if err := b.disk.remove(b.card(config.CardName + ".new")); err != nil {
		return left, err
	}
	for _, name := range gone {
		if err := b.disk.remove(b.card(name)); err != nil {
			return left, err
		}
	}
	return left, nil
}

// explain is the text on the card, for users with only a PC: what has the problems, and what was taken all the same.
func explain(what string, problems config.Problems) []byte {
	if len(problems) == 0 {
		return nil
	}
	var out strings.Builder
	fmt.Fprintf(&out, "What is wrong with %s.\r\nMend it, put the card back and start the device.\r\n\r\n", what)
	for _, p := range problems {
		out.WriteString(p.Error() + "\r\n")
	}
	return []byte(out.String())
}

// finish takes the folder of networks, and writes the radio's settings and the note: the last step.
func (b *boot) finish() error {
	if err := b.network(); err != nil {
		return err
	}
	if err := b.radio(); err != nil {
		return err
	}
	if b.now.Hostname == "" { // the card is unreadable at the first boot
		b.now.Hostname = born()
		if err := b.name(b.now.Hostname); err != nil {
			return err
		}
	}
	raw, err := json.MarshalIndent(b.now, "", "  ")
	if err != nil {
		return err
	}
	return b.disk.write(NotePath, append(raw, '\n'), 0o600)
}

// digest identifies content; a missing file differs from an empty one.
func digest(raw []byte) string {
	if raw == nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
