package firstboot

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"rivulet/appliance/config"
	"rivulet/fabric/cure"
)

// taken are the sections and keys that the device takes, by the ending of the file. They set up how the device joins
// networks, and nothing that it would be for others, such as a server of addresses, a router or a tunnel.
var taken = map[string]map[string]string{
	".network": {
		"Match":        "MACAddress PermanentMACAddress Path Driver Type Kind Name SSID BSSID",
		"Link":         "MACAddress MTUBytes ARP Multicast RequiredForOnline RequiredFamilyForOnline",
		"Network":      "Description DHCP LinkLocalAddressing Address Gateway DNS Domains DNSDefaultRoute DNSOverTLS DNSSEC NTP IPv6AcceptRA IPv6PrivacyExtensions LLDP KeepConfiguration VLAN Bond Bridge PrimarySlave",
		"Address":      "Address Peer Broadcast Label Scope RouteMetric",
		"Route":        "Gateway GatewayOnLink Destination Metric Source PreferredSource Scope MTUBytes",
		"DHCPv4":       "ClientIdentifier SendHostname Hostname UseDNS UseNTP UseDomains UseRoutes UseGateway UseMTU RouteMetric VendorClassIdentifier UserClass",
		"DHCPv6":       "DUIDType DUIDRawData UseAddress UseDNS UseNTP UseDomains",
		"IPv6AcceptRA": "Token UseDNS UseDomains UseAutonomousPrefix UseGateway UseMTU RouteMetric DHCPv6Client",
	},
	".netdev": {
		"NetDev": "Name Kind Description MACAddress MTUBytes",
		"VLAN":   "Id",
		"Bond":   "Mode TransmitHashPolicy LACPTransmitRate MIIMonitorSec UpDelaySec DownDelaySec MinLinks PrimaryReselectPolicy",
		"Bridge": "STP HelloTimeSec MaxAgeSec ForwardDelaySec",
	},
	".8021x": {
		"Security": "EAP-Method EAP-Identity EAP-Password" +
			" EAP-PEAP-CACert EAP-PEAP-ServerDomainMask EAP-PEAP-FastReauthentication EAP-PEAP-Phase2-Method EAP-PEAP-Phase2-Identity EAP-PEAP-Phase2-Password" +
			" EAP-TTLS-CACert EAP-TTLS-ServerDomainMask EAP-TTLS-FastReauthentication EAP-TTLS-Phase2-Method EAP-TTLS-Phase2-Identity EAP-TTLS-Phase2-Password" +
			" EAP-TLS-CACert EAP-TLS-ServerDomainMask EAP-TLS-FastReauthentication EAP-TLS-ClientCert EAP-TLS-ClientKey EAP-TLS-ClientKeyBundle EAP-TLS-ClientKeyPassphrase",
		"Settings": iwdSettings,
	},
	".psk":  {"Security": "Passphrase PreSharedKey PasswordIdentifier", "Settings": iwdSettings},
	".open": {"Settings": iwdSettings},
}

const iwdSettings = "AutoConnect Hidden TransitionDisable DisabledTransitionModes UseDefaultEccGroup"

// check finds what is wrong in the folder, or what the device gets of it and what is left on the card.
func (f *folder) check() {
	f.out, f.left, f.sheets = map[string][]byte{}, map[string][]byte{}, map[string]*sheet{}
	names := slices.Sorted(maps.Keys(f.files))
	for _, name := range names {
		switch ext := strings.ToLower(filepath.Ext(name)); ext {
		case ".network", ".netdev", ".8021x", ".psk", ".open":
			f.sheet(name, ext)
		case ".pem", ".crt", ".cer", ".key", ".p12", ".pfx":
			f.certificate(name, ext)
		default:
			do := "name it for what it is: NAME.network, NAME.netdev, SSID.8021x, SSID.psk, SSID.open, or .pem, .crt, .cer, .key, .p12; see: rivulet docs firstboot"
			if better := strings.TrimSuffix(name, filepath.Ext(name)); taken[filepath.Ext(better)] != nil {
				do = "rename it to " + better
			}
			f.problem(name, 0, fmt.Sprintf("files that end in %q are not taken", filepath.Ext(name)), do)
		}
	}
	for _, name := range names {
		s, ext := f.sheets[name], strings.ToLower(filepath.Ext(name))
		switch {
		case s == nil:
		case ext == ".network" || ext == ".netdev":
			f.networkd(s, ext)
		default:
			f.iwd(s, ext)
		}
	}
	f.devices()
	f.sortProblems()
}

// add records a file of the device.
func (f *folder) add(name, to string, data []byte) {
	if _, ok := f.out[to]; ok {
		f.problem(name, 0, "another file is for the same "+filepath.Base(to), "remove one of them")
	}
	f.out[to] = data
}

// sheet reads a file of sections, and checks their names and keys.
func (f *folder) sheet(name, ext string) {
	text := string(f.files[name])
	if strings.ContainsRune(text, 0) || strings.ToValidUTF8(text, "") != text {
		f.problem(name, 0, "it is not plain text in UTF-8", "save it again, as UTF-8")
		return
	}
	s := parseSheet(name, text, func(line int, text, cure string) { f.problem(name, line, text, cure) })
	f.sheets[name] = s
	sections := slices.Sorted(maps.Keys(taken[ext]))
	for _, k := range s.settings {
		keys, ok := taken[ext][k.section]
		switch {
		case !ok && k.key != "": // the section's own line has it
		case !ok:
			do := "remove it, or write one of " + strings.Join(sections, ", ")
			if near := config.Nearest(k.section, sections); near != "" {
				do = "did you mean [" + near + "]?"
			}
			f.problem(name, k.line, fmt.Sprintf("the section [%s] is not taken here", k.section), do)
		case k.key != "" && !slices.Contains(strings.Fields(keys), k.key):
			do := "remove it, or write one of " + strings.Join(strings.Fields(keys), ", ")
			if near := config.Nearest(k.key, strings.Fields(keys)); near != "" {
				do = "did you mean " + near + "?"
			}
			f.problem(name, k.line, fmt.Sprintf("the key %s is not taken in [%s]", k.key, k.section), do)
		case k.key != "" && k.value != "" && values[k.section+"."+k.key] != nil:
			if err := values[k.section+"."+k.key](k.value); err != nil {
				text, do := cure.Split(err)
				f.problem(name, k.line, k.key+": "+text, do)
			}
		}
	}
}

// values check those that are often wrong.
var values = map[string]func(string) error{
	"Match.MACAddress": each(checkMAC), "Match.PermanentMACAddress": each(checkMAC), "Match.Name": each(checkLinkName),
	"Network.Address": checkAddress, "Address.Address": checkAddress,
	"Network.Gateway": checkGateway, "Route.Gateway": checkGateway,
	"Network.DNS":       each(checkServer),
	"Network.DHCP":      oneOf("yes", "no", "ipv4", "ipv6"),
	"Route.Destination": checkDestination,
	"NetDev.Kind":       oneOf("vlan", "bond", "bridge"),
	"NetDev.Name":       checkDeviceName,
	"VLAN.Id":           number(1, 4094),
	"Link.MTUBytes":     number(1280, 65535), "NetDev.MTUBytes": number(1280, 65535),
	"Security.EAP-Method":             oneOf("PEAP", "TTLS", "TLS", "PWD"),
	"Security.EAP-PEAP-Phase2-Method": oneOf("MSCHAPV2", "GTC", "MD5"),
	"Security.EAP-TTLS-Phase2-Method": oneOf("Tunneled-PAP", "Tunneled-CHAP", "Tunneled-MSCHAP", "Tunneled-MSCHAPv2", "MSCHAPV2", "GTC", "MD5"),
}

func each(check func(string) error) func(string) error {
	return func(s string) error {
		for _, word := range strings.Fields(s) {
			if err := check(word); err != nil {
				return err
			}
		}
		return nil
	}
}

func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(words, s) {
			return nil
		}
		return cure.Errorf("%.40q is not taken; write %s", s, strings.Join(words, " or "))
	}
}

func number(least, most int) func(string) error {
	return func(s string) error {
		if n, err := strconv.Atoi(s); err != nil || n < least || n > most {
			return cure.Errorf("%.40q is not taken; write a number from %d to %d", s, least, most)
		}
		return nil
	}
}

func checkMAC(s string) error {
	if _, err := net.ParseMAC(s); err != nil {
		return cure.Errorf("%.40q is no hardware address; write for example b8:27:eb:01:02:03 (see: ip link)", s)
	}
	return nil
}

func checkAddress(s string) error {
	if _, err := netip.ParsePrefix(s); err == nil {
		return nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return cure.Errorf("%s has no length of its network; write for example %s/%d", s, a, map[bool]int{true: 24, false: 64}[a.Is4()])
	}
	return cure.Errorf("%.40q is no address; write for example 192.0.2.10/24", s)
}

func checkGateway(s string) error {
	if _, err := netip.ParseAddr(s); err != nil && s != "_dhcp4" && s != "_ipv6ra" {
		return cure.Errorf("%.40q is no address; write for example 192.0.2.1", s)
	}
	return nil
}

func checkServer(s string) error {
	addr, _, _ := strings.Cut(s, "#") // the name in its certificate
	if _, err := netip.ParseAddrPort(addr); err == nil {
		return nil
	}
	return checkGateway(addr)
}

func checkDestination(s string) error {
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	if _, err := netip.ParsePrefix(s); err != nil {
		return cure.Errorf("%.40q is no network; write for example 10.0.0.0/8", s)
	}
	return nil
}

var deviceName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)

func checkDeviceName(s string) error {
	if !deviceName.MatchString(s) {
		return cure.Errorf("%.40q is no name for an interface; write at most 15 letters and digits, for example lab20", s)
	}
	return checkLinkName(s)
}

// ours are interfaces of containers and peers, or begin like them.
var ours = []string{"lo", "riv0", "cni0", "veth0", "flannel.1", "kube-bridge"}

func checkLinkName(pattern string) error {
	for _, name := range ours {
		if hit, err := path.Match(strings.TrimPrefix(pattern, "!"), name); err != nil || hit || strings.HasPrefix(pattern, "!") ||
			len(name) > 2 && strings.HasPrefix(pattern, strings.TrimRight(name, "01.")) {
			return cure.Errorf("%.40q is also for interfaces of containers, such as %s; name the network card, for example eth0 or en*", pattern, name)
		}
	}
	return nil
}

// networkd checks a file as a whole.
func (f *folder) networkd(s *sheet, ext string) {
	if !config.OnCard(s.name) {
		f.problem(s.name, 0, "its name has other than plain letters, digits, dots, _ and -", "rename it, for example to lab"+ext)
	}
	for i, line := range s.lines {
		if strings.HasSuffix(line, `\`) {
			f.problem(s.name, i+1, "the line goes on in the next one", "write it on one line")
		}
	}
	if ext == ".network" {
		f.matches(s)
		f.gateways(s)
	} else {
		for _, key := range []string{"NetDev.Name", "NetDev.Kind"} {
			if _, ok := s.get(key); !ok {
				f.problem(s.name, 0, "it has no "+strings.TrimPrefix(key, "NetDev."), "add it below [NetDev], for example Name=lab20 and Kind=vlan")
			}
		}
		if kind, _ := s.get("NetDev.Kind"); kind.value == "vlan" {
			if _, ok := s.get("VLAN.Id"); !ok {
				f.problem(s.name, 0, "it has no Id", "add [VLAN], and below it for example Id=20")
			}
		}
	}
	f.add(s.name, networkdDir+"/"+ofCard+strings.TrimSuffix(s.name, filepath.Ext(s.name))+ext, s.with(nil))
}

// matches refuses a file that would also be for the interfaces of containers.
func (f *folder) matches(s *sheet) {
	for _, key := range []string{"Name", "MACAddress", "PermanentMACAddress", "Path", "SSID", "BSSID"} {
		if _, ok := s.get("Match." + key); ok {
			return
		}
	}
	kind, _ := s.get("Match.Kind")
	switch t, _ := s.get("Match.Type"); {
	case t.value == "wlan" || t.value == "ether" && kind.value == "!*":
	case t.value == "ether":
		f.problem(s.name, t.line, "Type=ether is also for the interfaces of containers", "add the line Kind=!* below it, for cables alone")
	default:
		f.problem(s.name, 0, "it is for all interfaces, those of containers, too", "write below [Match] a Name= or MACAddress= (see: ip link), or for any cable Type=ether and Kind=!*")
	}
}

// gateways refuses one that cannot be reached: the kernel would not take its route.
func (f *folder) gateways(s *sheet) {
	var own []netip.Prefix
	for _, a := range append(s.words("Network.Address"), s.words("Address.Address")...) {
		if p, err := netip.ParsePrefix(a); err == nil {
			own = append(own, p)
		}
	}
	for _, k := range s.all("Network.Gateway") {
		g, err := netip.ParseAddr(k.value)
		if err != nil || g.IsLinkLocalUnicast() || len(own) == 0 {
			continue
		}
		if !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Masked().Contains(g) }) {
			f.problem(s.name, k.line, fmt.Sprintf("the gateway %s is not in the network of %s", g, own[0]), "write the gateway of that network, or the right length behind the address")
		}
	}
}

// devices checks that VLANs, bonds and bridges are made, used, and set up.
func (f *folder) devices() {
	type device struct{ file, kind string }
	made, used := map[string]device{}, map[string]bool{}
	for name, s := range f.sheets {
		if n, ok := s.get("NetDev.Name"); ok {
			kind, _ := s.get("NetDev.Kind")
			made[n.value] = device{name, kind.value}
		}
	}
	for name, s := range f.sheets {
		for _, kind := range []string{"VLAN", "Bond", "Bridge"} {
			for _, k := range s.all("Network." + kind) {
				for _, to := range strings.Fields(k.value) {
					if used[to] = true; made[to].kind != strings.ToLower(kind) {
						f.problem(name, k.line, fmt.Sprintf("no file makes %.40q as a %s", to, strings.ToLower(kind)), fmt.Sprintf("add %s.netdev with [NetDev], Name=%s and Kind=%s", to, to, strings.ToLower(kind)))
					}
				}
			}
		}
	}
	for to, d := range made {
		if !used[to] {
			f.problem(d.file, 0, "no network card leads to "+to, "add to the [Network] of the card's .network file a line with its kind, for example VLAN="+to)
		}
		set := false
		for _, s := range f.sheets {
			set = set || slices.ContainsFunc(s.words("Match.Name"), func(p string) bool { hit, _ := path.Match(p, to); return hit })
		}
		if !set {
			f.problem(d.file, 0, to+" gets no address", "add a .network file with [Match] and Name="+to+", and with [Network] and DHCP=yes or its Address")
		}
	}
}

// certificate takes a file of certificates or keys. A key leaves the card.
func (f *folder) certificate(name, ext string) {
	raw, to := f.files[name], signInDir+"/"+name
	switch {
	case !config.OnCard(name):
		f.problem(name, 0, "its name has other than plain letters, digits, dots, _ and -", "rename it, for example to ca"+ext)
	case strings.TrimSpace(string(raw)) == config.Moved:
		if has := f.kept(to); has != nil {
			f.add(name, to, has)
		} else {
			f.problem(name, 0, "it was moved into another device, and this one does not have it", "put the file here again")
		}
	case ext == ".p12" || ext == ".pfx":
		if len(raw) == 0 || raw[0] != 0x30 {
			f.problem(name, 0, "it is no PKCS #12 file", "export certificate and key as PKCS #12 again")
		}
		f.add(name, to, raw)
		f.left[name] = []byte(config.Moved + "\n")
	default:
		private, err := checkPEM(&raw)
		if err != nil {
			text, do := cure.Split(err)
			f.problem(name, 0, text, do)
		}
		f.add(name, to, raw)
		if private {
			f.left[name] = []byte(config.Moved + "\n")
		}
	}
}

// checkPEM checks certificates and keys. It makes PEM, which iwd reads, of a certificate in DER.
func checkPEM(raw *[]byte) (private bool, err error) {
	if all, err := x509.ParseCertificates(*raw); err == nil && len(all) > 0 {
		*raw = nil
		for _, c := range all {
			*raw = append(*raw, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
		return false, nil
	}
	found := false
	for rest := *raw; ; found = true {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && found:
			return private, nil
		case block == nil:
			return private, cure.Errorf("it has neither a certificate nor a key; download it again, as PEM (Base64) or DER")
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			private = true
		case block.Type == "CERTIFICATE":
			if _, err := x509.ParseCertificate(block.Bytes); err != nil {
				return private, cure.Errorf("a certificate in it is damaged (%w); download it again", err)
			}
		default:
			return private, cure.Errorf("it has a %s; only certificates and private keys belong here", strings.ToLower(block.Type))
		}
	}
}
