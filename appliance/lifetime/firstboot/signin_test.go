package firstboot

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// authority writes a CA, and the certificate and key of a server and of a device, for names of uni.example, valid for two
// hours.
func authority(t *testing.T, dir string, from time.Time) {
	t.Helper()
	var parent *x509.Certificate
	var signer *ecdsa.PrivateKey
	for i, name := range []string{"uni-ca", "radius.uni.example", "device7.uni.example"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: from.Add(2 * time.Hour),
			DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IsCA: i == 0, BasicConstraintsValid: true}
		if i == 0 {
			c.DNSNames, c.ExtKeyUsage, parent, signer = nil, nil, c, key
		}
		cert, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if parent, err = x509.ParseCertificate(cert); err != nil {
				t.Fatal(err)
			}
		}
		raw, err := x509.MarshalPKCS8PrivateKey(key)
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, name+".pem"), []byte(pemOf("CERTIFICATE", cert)), 0o600),
			os.WriteFile(filepath.Join(dir, name+".key"), []byte(pemOf("PRIVATE KEY", raw)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// A device signs in to a switch by what firstboot makes of wired.8021x: a cable, hostapd as the switch and its server,
// and wpa_supplicant as on the device.
func TestTheCableSignsIn(t *testing.T) {
	for _, program := range []string{"hostapd", "wpa_supplicant", "ip", "unshare"} {
		if _, err := exec.LookPath(program); err != nil || os.Geteuid() != 0 {
			t.Skip("needs root, hostapd and wpa_supplicant (test/deps test): ", err)
		}
	}
	const password = `pa"ss \word#1`
	peap := strings.Replace(eduroam, "eduroam-word", `pa"ss \\word#1`, 1)
	for what, tc := range map[string]struct {
		file        string
		good, later bool // later: the device's clock is behind the certificates
	}{
		"PEAP":            {peap, true, false},
		"an old clock":    {peap, true, true},
		"and a wrong one": {strings.Replace(peap, "=radius.", "=other.", 1), false, true},
		"TTLS, PAP":       {strings.NewReplacer("PEAP", "TTLS", "=MSCHAPV2", "=Tunneled-PAP").Replace(peap), true, false},
		"TTLS, EAP":       {strings.ReplaceAll(peap, "PEAP", "TTLS"), true, true},
		"any of a domain": {strings.Replace(peap, "=radius.", "=*.", 1), true, false},
		"TLS":             {"[Security]\nEAP-Method=TLS\nEAP-Identity=device7\nEAP-TLS-CACert=uni-ca.pem\nEAP-TLS-ClientCert=device7.uni.example.pem\nEAP-TLS-ClientKey=device7.uni.example.key\n", true, false},
		"PWD":             {"[Security]\nEAP-Method=PWD\nEAP-Identity=me@uni.example\nEAP-Password=pa\"ss \\\\word#1\n", true, false},
		"another server":  {strings.Replace(peap, "=radius.", "=other.", 1), false, false},
		"wrong password":  {strings.Replace(peap, "word#1", "word#2", 1), false, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			from := time.Now().Add(-time.Hour)
			if tc.later {
				from = time.Now().Add(24 * time.Hour)
			}
			authority(t, dir, from)
			files := map[string]string{"wired.8021x": tc.file}
			for _, name := range []string{"uni-ca.pem", "device7.uni.example.pem", "device7.uni.example.key"} {
				raw, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				files[name] = string(raw)
			}
			tr := newTree(t, onCard(files))
			if n := tr.run(); len(n.All()) > 0 {
				t.Fatal(n.All())
			}
			at := func(path string) string { return hex.EncodeToString([]byte(path)) }
			conf := strings.ReplaceAll(tr.text(signInDir+"/wired.conf"), at(signInDir), at(tr.root+signInDir))
			fill(t, tree{t, dir}, map[string]string{
				"/wired.conf": conf,
				"/users":      fmt.Sprintf("\"anonymous@uni.example\" PEAP,TTLS\n\"device7\" TLS\n\"me@uni.example\" PWD %[1]x\n\"me@uni.example\" MSCHAPV2,TTLS-PAP %[1]x [2]\n", password),
				"/hostapd.conf": strings.ReplaceAll("interface=switch\ndriver=wired\nieee8021x=1\neap_server=1\npwd_group=19\neap_user_file=DIR/users\nca_cert=DIR/uni-ca.pem\n"+
					"server_cert=DIR/radius.uni.example.pem\nprivate_key=DIR/radius.uni.example.key\n", "DIR", dir),
			})
			ctx, cancel := context.WithCancel(t.Context())
			cmd := exec.CommandContext(ctx, "unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c",
				"ip link add switch type veth peer name device && ip link set switch up && ip link set device up && { hostapd hostapd.conf >switch.log 2>&1 & } && "+
					"exec wpa_supplicant -D wired -i device -c wired.conf >device.log 2>&1")
			cmd.Dir = dir
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cancel()
			logs := func() string {
				device, _ := os.ReadFile(filepath.Join(dir, "device.log")) // not there yet
				server, _ := os.ReadFile(filepath.Join(dir, "switch.log"))
				return string(device) + "\nswitch:\n" + string(server)
			}
			await.True(t, time.Minute, "the sign-in ends", func() bool {
				return strings.Contains(logs(), "CTRL-EVENT-EAP-SUCCESS ") || strings.Contains(logs(), "CTRL-EVENT-EAP-FAILURE ")
			})
			if strings.Contains(logs(), "CTRL-EVENT-EAP-SUCCESS ") != tc.good {
				t.Errorf("%s\n%s", logs(), conf)
			}
		})
	}
}

// What firstboot makes for wpa_supplicant, without a password in plain text that a quotation mark could end.
func TestSettingsOfTheCable(t *testing.T) {
	tr := newTree(t, onCard(map[string]string{"wired.8021x": wired + "EAP-TTLS-FastReauthentication=false\n"}))
	if n := tr.run(); len(n.All()) > 0 {
		t.Fatal(n.All())
	}
	text := func(s string) string { return hex.EncodeToString([]byte(s)) }
	want := "# Made by rivulet firstboot of wired.8021x on the boot partition.\nap_scan=0\nfast_reauth=0\nnetwork={\nkey_mgmt=IEEE8021X\neapol_flags=0\neap=TTLS\n" +
		"anonymous_identity=" + text("anonymous@uni.example") + "\nidentity=" + text("me@uni.example") + "\npassword=" + text(` wired-word\"`) + "\nphase2=" + text("auth=PAP") +
		"\nca_cert=" + text(publicCAs) + "\nphase1=" + text("tls_disable_time_checks=1") + "\ndomain_suffix_match=" + text("uni.example;radius.other.example") + "\n}\n"
	if got := tr.text(signInDir + "/wired.conf"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
