package firstboot

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/config"
	"rivulet/image/device/layout"
)

const eduroam = `# eduroam, as the computing centre has it
[Security]
EAP-Method=PEAP
EAP-Identity=anonymous@uni.example
EAP-PEAP-CACert=uni-ca.pem
EAP-PEAP-ServerDomainMask=radius.uni.example
EAP-PEAP-Phase2-Method=MSCHAPV2
EAP-PEAP-Phase2-Identity=me@uni.example
EAP-PEAP-Phase2-Password=eduroam-word
`

const wired = `[Security]
EAP-Method=TTLS
EAP-Identity=anonymous@uni.example
EAP-TTLS-CACert=/etc/ssl/certs/ca-certificates.crt
EAP-TTLS-ServerDomainMask=*.uni.example;radius.other.example
EAP-TTLS-Phase2-Method=Tunneled-PAP
EAP-TTLS-Phase2-Identity=me@uni.example
EAP-TTLS-Phase2-Password=\swired-word\\"
`

const static = "[Match]\nName=eth0\n[Network]\nAddress=192.0.2.10/24\nGateway=192.0.2.1\nDNS=192.0.2.53\nVLAN=lab20\n"

const vlan = "[NetDev]\nName=lab20\nKind=vlan\n[VLAN]\nId=20\n"

// der is a certificate of an authority.
var der = sync.OnceValue(func() []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Uni CA"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return raw
})

func pemOf(kind string, raw []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}))
}

// campus is a folder with everything.
func campus() map[string]string {
	return map[string]string{
		"20-lab.network": strings.ReplaceAll(static, "\n", "\r\n"), "lab20.netdev": vlan, "lab20.network": "[Match]\nName=lab20\n[Network]\nDHCP=yes\n",
		"eduroam.8021x": eduroam, "wired.8021x": wired, "guest.net.open": "",
		"uni-ca.pem": pemOf("CERTIFICATE", der()), "device.key": pemOf("PRIVATE KEY", []byte("wired-key-of-a-card")), "other.cer": string(der()),
		".DS_Store": "x", "desktop.ini": "x",
	}
}

// with is the folder with some files replaced; an empty text removes one.
func with(change map[string]string) map[string]string {
	files := campus()
	maps.Copy(files, change)
	maps.DeleteFunc(files, func(name, text string) bool { return text == "" && change[name] == "" && name != "guest.net.open" })
	return files
}

func onCard(files map[string]string) map[string]string {
	out := map[string]string{bootDir + "/slot.cfg": "the loader's"}
	for name, text := range files {
		out[bootDir+"/network/"+name] = text
	}
	return out
}

// What is wrong is told with file, line and cure, for a device and before a card is written.
func TestMistakesInTheFolder(t *testing.T) {
	many := map[string]string{}
	for i := range maxNetworkFiles + 1 {
		many["x"+strings.Repeat("x", i)+".open"] = "[Settings]\n"
	}
	network := func(text string) map[string]string { return map[string]string{"a.network": text} }
	netdev := func(text string) map[string]string {
		return map[string]string{"lab20.netdev": text, "lab20.network": "[Match]\nName=lab20\n", "20-lab.network": "[Match]\nName=eth0\n[Network]\nVLAN=lab20\n"}
	}
	wifi := func(old, new string) map[string]string {
		return map[string]string{"eduroam.8021x": strings.Replace(eduroam, old, new, 1)}
	}
	cable := func(old, new string) map[string]string {
		return map[string]string{"wired.8021x": strings.Replace(wired, old, new, 1)}
	}
	for _, tc := range []struct {
		what   string
		change map[string]string
		want   string // none: all is well
	}{
		{"all", nil, ""},
		{"misspelt key", network("[Match]\nName=eth0\n[Network]\nAdress=192.0.2.7/24\n"), "network/a.network:4:1: the key Adress is not taken in [Network]; did you mean Address?"},
		{"misspelt section", network("[Match]\nName=eth0\n[Netwrk]\nDHCP=yes\n"), "network/a.network:3:1: the section [Netwrk] is not taken here; did you mean [Network]?"},
		{"a server of addresses", network("[Match]\nName=eth0\n[Network]\nDHCPServer=yes\n"), "network/a.network:4:1: the key DHCPServer is not taken in [Network]"},
		{"a router", network("[Match]\nName=eth0\n[Network]\nIPMasquerade=both\n"), "the key IPMasquerade is not taken"},
		{"no section", network("Name=eth0\n"), "a.network:1:1: Name is in no section"},
		{"no value", network("[Match]\nName eth0\n"), "a.network:2:1: it is neither [SECTION] nor KEY=VALUE"},
		{"no length", network("[Match]\nName=eth0\n[Network]\nAddress=192.0.2.7\n"), "a.network:4:1: Address: 192.0.2.7 has no length of its network; write for example 192.0.2.7/24"},
		{"no address", network("[Match]\nName=eth0\n[Address]\nAddress=192.0.2.300/24\n"), `"192.0.2.300/24" is no address`},
		{"another network's gateway", network("[Match]\nName=eth0\n[Network]\nAddress=192.0.2.7/28\nGateway=192.0.2.17\n"), "a.network:5:1: the gateway 192.0.2.17 is not in the network of 192.0.2.7/28"},
		{"DNS by name", network("[Match]\nName=eth0\n[Network]\nDNS=192.0.2.1 dns.uni.example\n"), `DNS: "dns.uni.example" is no address`},
		{"DHCP of a kind", network("[Match]\nName=eth0\n[Network]\nDHCP=both\n"), "write yes or no or ipv4 or ipv6"},
		{"a route", network("[Match]\nName=eth0\n[Route]\nDestination=10/8\nGateway=192.0.2.1\n"), `Destination: "10/8" is no network`},
		{"all interfaces", network("[Network]\nDHCP=yes\n"), "a.network: it is for all interfaces, those of containers, too"},
		{"any cable", network("[Match]\nType=ether\nKind=!*\n[Network]\nDHCP=yes\n"), ""},
		{"containers by type", network("[Match]\nType=ether\n[Network]\nDHCP=yes\n"), "a.network:2:1: Type=ether is also for the interfaces of containers"},
		{"containers by name", network("[Match]\nName=eth0 v*\n"), "is also for interfaces of containers, such as veth0"},
		{"tunnels by name", network("[Match]\nName=riv7\n"), "such as riv0"},
		{"all but one", network("[Match]\nName=!eth0\n"), "is also for interfaces of containers"},
		{"a line that goes on", network("[Match]\nName=eth0 \\\neth1\n"), "a.network:2:1: the line goes on"},
		{"VLAN without its file", map[string]string{"lab20.netdev": "", "lab20.network": ""}, `network/20-lab.network:7:1: no file makes "lab20" as a vlan; add lab20.netdev`},
		{"VLAN without a card", map[string]string{"20-lab.network": ""}, "network/lab20.netdev: no network card leads to lab20; add"},
		{"VLAN without an address", map[string]string{"lab20.network": ""}, "network/lab20.netdev: lab20 gets no address"},
		{"VLAN beyond", netdev("[NetDev]\nName=lab20\nKind=vlan\n[VLAN]\nId=4095\n"), "lab20.netdev:5:1: Id: \"4095\" is not taken; write a number from 1 to 4094"},
		{"VLAN without a number", netdev("[NetDev]\nName=lab20\nKind=vlan\n"), "lab20.netdev: it has no Id"},
		{"a tunnel", netdev("[NetDev]\nName=lab20\nKind=wireguard\n[WireGuard]\nPrivateKey=x\n"), "write vlan or bond or bridge"},
		{"a name of ours", netdev("[NetDev]\nName=cni0\nKind=bridge\n"), "Name: \"cni0\" is also for interfaces of containers"},
		{"a bond", map[string]string{"bond0.netdev": "[NetDev]\nName=bond0\nKind=bond\n[Bond]\nMode=active-backup\n", "bond0.network": "[Match]\nName=bond0\n[Network]\nDHCP=yes\n", "p.network": "[Match]\nName=eth1 eth2\n[Network]\nBond=bond0\n"}, ""},
		{"no CA", wifi("EAP-PEAP-CACert=uni-ca.pem\n", ""), "network/eduroam.8021x:3:1: PEAP needs EAP-PEAP-CACert; add the line EAP-PEAP-CACert=, with the name"},
		{"CA that is not there", wifi("uni-ca.pem", "Uni-CA.pem"), `eduroam.8021x:5:1: EAP-PEAP-CACert: there is no file "Uni-CA.pem" in the folder`},
		{"CA elsewhere", wifi("uni-ca.pem", "/etc/shadow"), `the device has no "/etc/shadow"`},
		{"CA above", wifi("uni-ca.pem", "../rivulet.yaml"), `there is no file "../rivulet.yaml"`},
		{"a public CA, any server", wifi("CACert=uni-ca.pem\nEAP-PEAP-ServerDomainMask=radius.uni.example", "CACert="+publicCAs), "PEAP needs EAP-PEAP-ServerDomainMask; add the line EAP-PEAP-ServerDomainMask="},
		{"any server", wifi("EAP-PEAP-ServerDomainMask=radius.uni.example\n", ""), "PEAP needs EAP-PEAP-ServerDomainMask"},
		{"half of what is left there", wifi("eduroam-word", "moved into the device"), "eduroam.8021x:9:1: EAP-PEAP-Phase2-Password is not what the device has left there"},
		{"moved elsewhere, and a blank", wifi("eduroam-word", config.Moved+" "), "eduroam.8021x:9:1: EAP-PEAP-Phase2-Password was moved into another device"},
		{"blanks at the end", network("[Match]\nName=eth0 \n[Network]\nDHCP=yes\t\nAddress=192.0.2.7/24 \n"), ""},
		{"another method's key", wifi("EAP-PEAP-CACert", "EAP-TTLS-CACert"), "EAP-TTLS-CACert is not of the method PEAP"},
		{"method in small letters", wifi("=PEAP", "=peap"), `EAP-Method: "peap" is not taken; write PEAP or TTLS or TLS or PWD`},
		{"no method", wifi("EAP-Method=PEAP\n", ""), "eduroam.8021x: it has no EAP-Method"},
		{"no password", wifi("EAP-PEAP-Phase2-Password=eduroam-word\n", ""), "PEAP needs EAP-PEAP-Phase2-Password"},
		{"a single backslash", wifi("eduroam-word", `edu\roam\word`), "eduroam.8021x:9:1: EAP-PEAP-Phase2-Password has a single backslash"},
		{"moved elsewhere", wifi("eduroam-word", config.Moved), "eduroam.8021x:9:1: EAP-PEAP-Phase2-Password was moved into another device"},
		{"addresses with iwd", wifi("[Security]", "[IPv4]\nAddress=192.0.2.7\n[Security]"), "eduroam.8021x:2:1: the section [IPv4] is not taken here"},
		{"TLS", map[string]string{"eduroam.8021x": "[Security]\nEAP-Method=TLS\nEAP-Identity=device7\nEAP-TLS-CACert=uni-ca.pem\nEAP-TLS-ClientCert=other.cer\nEAP-TLS-ClientKey=device.key\n"}, ""},
		{"TLS without a key", map[string]string{"eduroam.8021x": "[Security]\nEAP-Method=TLS\nEAP-Identity=device7\nEAP-TLS-CACert=uni-ca.pem\nEAP-TLS-ClientCert=other.cer\n"}, "TLS needs EAP-TLS-ClientCert and EAP-TLS-ClientKey"},
		{"asterisk inside", cable("*.uni.example", "radius.*.example"), "wired.8021x:5:1: EAP-TTLS-ServerDomainMask has an asterisk"},
		{"PSK", map[string]string{"lab.psk": "[Security]\nPassphrase=long enough\n"}, ""},
		{"short PSK", map[string]string{"lab.psk": "[Security]\nPassphrase=short\n"}, "network/lab.psk:2:1: Passphrase: it cannot be the password"},
		{"a key as PSK", map[string]string{"lab.psk": "[Security]\nPassphrase=" + strings.Repeat("a", 64) + "\n"}, "write it as PreSharedKey="},
		{"a name of other letters", map[string]string{"caf\u00e9.open": "[Settings]\n"}, "the boot partition cannot keep this name; name the file =636166c3a9.open"},
		{"a name with a colon", map[string]string{"a:b.open": "[Settings]\n"}, "name the file =613a62.open"},
		{"PSK without one", map[string]string{"lab.psk": "[Settings]\nHidden=true\n"}, "lab.psk: it has no Passphrase"},
		{"PSK in digits", map[string]string{"lab.psk": "[Security]\nPreSharedKey=123\n"}, "PreSharedKey has not 64"},
		{"a long name", map[string]string{strings.Repeat("x", 33) + ".open": "[Settings]\n"}, "has 1 to 32 bytes, this one 33"},
		{"the same network twice", map[string]string{"=6775657374.open": "[Settings]\n", "guest.open": "[Settings]\n"}, "another file is for the same guest.open"},
		{"an editor's ending", map[string]string{"eduroam.8021x.txt": "x"}, `network/eduroam.8021x.txt: files that end in ".txt" are not taken; rename it to eduroam.8021x`},
		{"of wpa_supplicant", map[string]string{"wpa_supplicant.conf": "x"}, "name it for what it is: NAME.network"},
		{"a blank in a name", map[string]string{"my ca.pem": "x"}, "network/my ca.pem: its name has other than plain letters"},
		{"no certificate", map[string]string{"a.pem": "<html>"}, "network/a.pem: it has neither a certificate nor a key"},
		{"a damaged one", map[string]string{"a.pem": pemOf("CERTIFICATE", []byte("x"))}, "a certificate in it is damaged"},
		{"a request", map[string]string{"a.pem": pemOf("CERTIFICATE REQUEST", []byte("x"))}, "it has a certificate request"},
		{"no PKCS 12", map[string]string{"a.p12": "x"}, "it is no PKCS #12 file"},
		{"UTF-16", map[string]string{"a.network": "[\x00M\x00"}, "a.network: it is not plain text in UTF-8"},
		{"a folder", map[string]string{"more/a.network": "x"}, "network/more: it is no file"},
		{"a large one", map[string]string{"a.pem": strings.Repeat("x", maxCard+1)}, "network/a.pem: it is longer than 64 KiB"},
		{"too many", many, "network: there are more than 32 files"},
	} {
		dir := filepath.Join(t.TempDir(), "network")
		files := map[string]string{}
		for name, text := range with(tc.change) {
			files["/"+name] = text
		}
		fill(t, tree{t, dir}, files)
		_, problems, err := NetworkFiles(dir, nil)
		said := ""
		for _, p := range problems {
			said += p.Error() + "\n"
		}
		if err != nil || (tc.want == "") != (len(problems) == 0) || !strings.Contains(said, tc.want) {
			t.Errorf("%s: %v, told %q, want %q", tc.what, err, said, tc.want)
		}
		for _, p := range problems {
			if p.Cure == "" {
				t.Errorf("%s: no cure: %+v", tc.what, p)
			}
		}
	}
}

// A folder with a mistake changes nothing of the networks that the device has, and says so on the card until it is mended.
func TestABadFolderLeavesTheNetwork(t *testing.T) {
	tr := newTree(t, onCard(campus()))
	if n := tr.run(); len(n.All()) > 0 {
		t.Fatal(n.All())
	}
	networks := func() map[string]string {
		out := tr.all()
		maps.DeleteFunc(out, func(name, _ string) bool {
			return !strings.HasPrefix(name, networkdDir) && !strings.HasPrefix(name, signInDir) && !strings.HasPrefix(name, wifiDir)
		})
		return out
	}
	good := networks()
	fill(t, tr, map[string]string{bootDir + "/network/20-lab.network": "[Match]\nName=eth0\n[Network]\nAddress=192.0.2.11\n"})
	for range 2 {
		n, told := tr.run(), tr.text(bootDir+"/"+NetworkErrorName)
		if len(n.All()) == 0 || !strings.Contains(told, "keeps the networks that it had.\r\n") || !strings.Contains(told, "network/20-lab.network:4:1: Address: 192.0.2.11 has no length") {
			t.Errorf("%v, told %q", n.All(), told)
		}
		same(t, "with a mistake", networks(), good)
	}
	fill(t, tr, map[string]string{bootDir + "/network/20-lab.network": static})
	if n := tr.run(); len(n.All()) > 0 || tr.text(bootDir+"/"+NetworkErrorName) != "" {
		t.Errorf("mended: %v, %q", n.All(), tr.text(bootDir+"/"+NetworkErrorName))
	}

	// A card that cannot be read is no order to forget, an empty one neither.
	if err := os.Rename(tr.root+bootDir, tr.root+"/away"); err != nil {
		t.Fatal(err)
	}
	good = networks()
	tr.run()
	same(t, "without its partition", networks(), good)
	if err := errors.Join(os.Rename(tr.root+"/away", tr.root+bootDir), os.RemoveAll(tr.root+bootDir+"/network")); err != nil {
		t.Fatal(err)
	}
	if tr.run(); len(networks()) > 0 {
		t.Errorf("without the folder the device has %v", networks())
	}
}

// Later changes: passwords that were moved stay, what leaves the card leaves the device, and another device has none.
func TestAnotherFolderLater(t *testing.T) {
	tr := newTree(t, onCard(campus()))
	tr.run()
	left := tr.text(bootDir + "/network/eduroam.8021x")
	if left != strings.Replace(eduroam, "eduroam-word", config.Moved, 1) {
		t.Errorf("left on the card: %q", left)
	}
	fill(t, tr, map[string]string{bootDir + "/network/eduroam.8021x": strings.Replace(left, "anonymous@", "guest@", 1), bootDir + "/network/Device.key": "x"})
	if err := errors.Join(os.Remove(tr.root+bootDir+"/network/Device.key"), os.Remove(tr.root+bootDir+"/network/wired.8021x")); err != nil {
		t.Fatal(err)
	}
	if n := tr.run(); len(n.All()) > 0 {
		t.Error(n.All())
	}
	for name, want := range map[string]string{wifiDir + "/eduroam.8021x": "EAP-Identity=guest@uni.example\n", signInDir + "/device.key": "d2lyZWQ", networkdDir + "/10-card-20-lab.network": "192.0.2.10/24"} {
		if text := tr.text(name); !strings.Contains(text, want) || strings.Contains(text, config.Moved) || strings.Contains(text, "\r") {
			t.Errorf("%s is %q, want %q", name, text, want)
		}
	}
	if !strings.Contains(tr.text(wifiDir+"/eduroam.8021x"), "eduroam-word") || tr.text(signInDir+"/wired.conf") != "" || tr.text(signInDir+"/wired.8021x") != "" {
		t.Errorf("%v", tr.all())
	}
	other := newTree(t, onCard(map[string]string{"eduroam.8021x": left, "uni-ca.pem": campus()["uni-ca.pem"], "device.key": config.Moved + "\n"}))
	if n := other.run(); len(n.All()) != 2 || other.text(wifiDir+"/eduroam.8021x") != "" {
		t.Errorf("another device: %v", n.All())
	}
}

// A network of the folder that rivulet.yaml has, too, is a mistake; one that moves from one to the other is kept.
func TestTheFolderAndTheFile(t *testing.T) {
	files := full()
	files[bootDir+"/network/lab.psk"] = "[Security]\nPassphrase=another-word\n"
	tr := newTree(t, files)
	if n := tr.run(); !strings.Contains(n.All().Error(), "it has the network of lab.psk, as wifi in rivulet.yaml") || !strings.Contains(tr.text(wifiDir+"/lab.psk"), "a-long-word") {
		t.Errorf("%v", n.All())
	}
	fill(t, tr, map[string]string{bootDir + "/" + config.CardName: "name: bench-7\n"})
	if n := tr.run(); len(n.All()) > 0 || !strings.Contains(tr.text(wifiDir+"/lab.psk"), "another-word") {
		t.Errorf("to the folder: %v, %q", n.All(), tr.text(wifiDir+"/lab.psk"))
	}
	fill(t, tr, map[string]string{bootDir + "/" + config.CardName: "wifi: {networks: [{ssid: lab, password: a-third-word}]}\n"})
	if err := os.Remove(tr.root + bootDir + "/network/lab.psk"); err != nil {
		t.Fatal(err)
	}
	if n := tr.run(); len(n.All()) > 0 || !strings.Contains(tr.text(wifiDir+"/lab.psk"), "a-third-word") {
		t.Errorf("to the file: %v, %q", n.All(), tr.text(wifiDir+"/lab.psk"))
	}
}

// While nothing is kept, or the card cannot be written, the only copies stay; the latter is told.
func TestSecretsOfTheFolderStay(t *testing.T) {
	files := onCard(campus())
	files[layout.DataFailed] = "/dev/sda4 cannot be used\n"
	tr := newTree(t, files)
	if n := tr.run(); len(n.All()) > 0 || tr.text(bootDir+"/network/eduroam.8021x") != eduroam || tr.text(wifiDir+"/eduroam.8021x") == "" {
		t.Errorf("data in memory: %v", n.All())
	}
	tr = newTree(t, onCard(campus()))
	dev := tr.device()
	dev.Open = func() (func(), error) { return nil, errors.New("it is read-only") }
	if n, err := Run(dev); err != nil || !strings.Contains(n.All().Error(), "remove the passwords") || tr.text(wifiDir+"/eduroam.8021x") == "" {
		t.Errorf("%v %v", n.All(), err)
	}
	if n := tr.run(); len(n.All()) > 0 || strings.Contains(tr.text(bootDir+"/network/eduroam.8021x"), "eduroam-word") {
		t.Errorf("the next boot: %v", n.All())
	}
}

// networkd and iwd know each key that is taken, where they are installed.
func TestKeysOfTheFolderAreKnown(t *testing.T) {
	program, err := os.ReadFile("/lib/systemd/systemd-networkd")
	if err != nil {
		t.Skip("needs systemd-networkd: ", err)
	}
	for _, ext := range []string{".network", ".netdev"} {
		for section, keys := range taken[ext] {
			for _, key := range strings.Fields(keys) {
				if !bytes.Contains(program, []byte("\x00"+section+"."+key+"\x00")) {
					t.Errorf("systemd-networkd does not know %s in [%s]", key, section)
				}
			}
		}
	}
}

// The examples of the guide are taken as they are.
func TestExamplesOfTheGuide(t *testing.T) {
	page, err := os.ReadFile("../../../docs/guide/how-to.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"/uni-ca.pem": pemOf("CERTIFICATE", der())}
	for _, m := range regexp.MustCompile("(?s)```ini\n# network/(\\S+)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		files["/"+m[1]] = m[2]
	}
	dir := t.TempDir()
	fill(t, tree{t, dir}, files)
	if _, problems, err := NetworkFiles(dir, nil); err != nil || len(problems) > 0 || len(files) < 6 {
		t.Errorf("%d files: %v, %v", len(files), problems, err)
	}
}
