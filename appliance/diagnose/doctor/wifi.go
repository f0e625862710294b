package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"rivulet/image/device/layout"
)

// radio is what iwd knows of a wireless interface.
type radio struct {
	powered bool
	state   string   // connected, connecting, disconnected, …
	joined  string   // the network that it is in, or empty
	known   []string // networks that it may join
	hidden  bool     // one of those does not show itself
	seen    []string // networks in reach
}

// object is an object of iwd on D-Bus: its properties by interface.
type object map[string]map[string]struct{ Data any }

func (o object) text(kind, name string) string {
	s, _ := o["net.connman.iwd."+kind][name].Data.(string)
	return s
}

func (o object) is(kind, name string) bool {
	b, _ := o["net.connman.iwd."+kind][name].Data.(bool)
	return b
}

// parseRadio reads the reply of iwd's object manager; ok is false if iwd does not have the interface.
func parseRadio(reply, link string) (r radio, ok bool) {
	var said struct{ Data []map[string]object }
	if err := json.Unmarshal([]byte(reply), &said); err != nil || len(said.Data) != 1 {
		return r, false
	}
	path := ""
	for p, o := range said.Data[0] {
		if o.text("Device", "Name") == link {
			path, r.powered, r.state = p, o.is("Device", "Powered"), o.text("Station", "State")
		}
		if name := o.text("KnownNetwork", "Name"); name != "" {
			r.known = append(r.known, name)
			r.hidden = r.hidden || o.is("KnownNetwork", "Hidden")
		}
	}
	for _, o := range said.Data[0] {
		if name := o.text("Network", "Name"); name != "" && o.text("Network", "Device") == path {
			r.seen = append(r.seen, name)
			if o.is("Network", "Connected") {
				r.joined = name
			}
		}
	}
	for _, names := range []*[]string{&r.known, &r.seen} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return r, path != ""
}

// listed writes names of networks, which are anybody's to choose.
func listed(names []string) string {
	var out []string
	for _, n := range names[:min(len(names), 6)] {
		out = append(out, fmt.Sprintf("%.40q", n))
	}
	if len(names) > len(out) {
		out = append(out, fmt.Sprintf("%d more", len(names)-len(out)))
	}
	return strings.Join(out, ", ")
}

// wifi explains why a wireless interface is on no network; text is empty if iwd does not run. It is not started for it:
// on a PC, another program may have the radio.
func (e *Env) wifi(ctx context.Context, link string) (text, cure string) {
	reply, err := e.Exec(ctx, "busctl", "--auto-start=no", "--json=short", "call", "net.connman.iwd", "/", "org.freedesktop.DBus.ObjectManager", "GetManagedObjects")
	if err != nil {
		return "", ""
	}
	r, ok := parseRadio(reply, link)
	if !ok {
		return "", ""
	}
	join := "join it: sudo iwctl station " + link + " connect NAME"
	if e.exists(layout.RunSlot) {
		join = "write it into wifi in rivulet.yaml on the boot partition, and start the device again"
	}
	near := slices.DeleteFunc(slices.Clone(r.known), func(n string) bool { return !slices.Contains(r.seen, n) })
	switch {
	case !r.powered:
		return link + " is switched off (rfkill)", "switch its radio on, and start the device again"
	case r.joined != "" && r.state != "connecting":
		return fmt.Sprintf("%s has joined %s and gets no address", link, listed([]string{r.joined})), "see that the network has a DHCP server and lets this device in"
	case len(r.known) == 0:
		return link + " knows no Wi-Fi network", "plug a cable in, or choose a network and " + join
	case len(r.seen) == 0:
		return link + " sees no Wi-Fi network", "put it nearer to the access point; on 5 GHz it needs the right country (wifi.country)"
	case len(near) == 0 && !r.hidden:
		return fmt.Sprintf("%s does not see %s; in reach are %s", link, listed(r.known), listed(r.seen)),
			"compare the names letter by letter, and the country (wifi.country); " + join
	}
	if len(near) == 0 {
		near = r.known // one of them is hidden
	}
	log, _ := e.Exec(ctx, "journalctl", "-b", "-q", "-u", "iwd", "-o", "cat", "-n", "200", "--no-pager") // without it the reason is not known
	why, cure := refusal(log)
	return fmt.Sprintf("%s cannot join %s: %s", link, listed(near), why), cure + "; " + join
}

// Lines of iwd's log: a password that the access point does not take, and other failures.
var (
	wrongPassword = regexp.MustCompile(`4-Way handshake failed|event: (?:connect-failed|disconnect-info), reason: (?:2|15)\b`)
	refused       = regexp.MustCompile(`event: ((?:connect|authentication|association)-(?:failed|timeout)(?:, (?:status|reason): \d+)?)`)
)

// refusal returns the reason of the last attempt to join.
func refusal(log string) (why, cure string) {
	lines := strings.Split(log, "\n")
	for _, line := range slices.Backward(lines) {
		if strings.Contains(line, "EAP completed with eapFail") {
			return "it does not accept the sign-in (802.1X)", "compare identity, password, certificate and the server's name in network/NAME.8021x with what the network's owner says"
		}
		if wrongPassword.MatchString(line) {
			return "its password is probably wrong", "look at the password"
		}
		if m := refused.FindStringSubmatch(line); m != nil {
			return "the access point does not let it in (" + m[1] + ")",
				"look at the password, and let the access point offer WPA2, too: a Raspberry Pi cannot use WPA3, and a Raspberry Pi 3 may need WPA2 alone"
		}
	}
	return "it is trying", "wait a minute, and look at the password"
}

// ownOnly reports whether an interface has only the addresses that it gives itself by IPv6.
func ownOnly(all []netip.Prefix) bool {
	return !slices.ContainsFunc(all, func(p netip.Prefix) bool { return !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() })
}
