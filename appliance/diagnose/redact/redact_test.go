package redact

import (
	"encoding/base64"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const canary = "CANARYcanary0123456789"

var key32 = base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))

// Wherever the canary stands, it must not come out, and what is around it must.
func TestWhatIsNamedSecretGoes(t *testing.T) {
	r := New(nil)
	for _, text := range []string{
		"password: " + canary, "password=" + canary, `"password": "` + canary + `"`, `"password":"a \" ` + canary + `"`,
		`{\"password\":\"` + canary + `\"}`, `msg="login" password="` + canary + ` with spaces"`, "DB_PASSWORD=" + canary, "MYSQL_ROOT_PASSWD: '" + canary + "'",
		"passphrase: " + canary, "pwd=" + canary, "clientSecret: " + canary, "wifi-psk=" + canary, "psk=\"" + canary + "\"", "token: " + canary,
		"--token " + canary, " --token=" + canary, "run --secret-access-key " + canary, "apiKey: " + canary, "api_key=" + canary, "X-Api-Key: " + canary,
		"private-key: " + canary, "AWS_ACCESS_KEY_ID=" + canary, "client-key-data: " + canary, "credentials: " + canary, "identitytoken: " + canary,
		"Authorization: Bearer " + canary, "authorization=Basic " + canary, "Authorization:[Bearer " + canary + "]", "curl -H bearer " + canary,
		"https://user:" + canary + "@registry.example/v2/", "https://" + canary + "@registry.example/v2/", "postgres://u:" + canary + "@db:5432/x",
		"auth: " + canary, `"auth":"` + canary + `"`, "?access_token=" + canary + "&x=y",
		"K10" + strings.Repeat("a", 64) + "::server:" + canary, "K10" + strings.Repeat("a", 64) + "::" + canary, "x::node:" + canary,
		"eyJhbGciOiJ.eyJ" + canary + "." + canary, "eyJhbGciOiJ." + canary + ".x",
		"-----BEGIN RSA PRIVATE KEY-----\n" + canary + "\n" + canary + "==\n-----END RSA PRIVATE KEY-----",
		`-----BEGIN PRIVATE KEY-----\n` + canary + `\n-----END PRIVATE KEY-----`,
		"-----BEGIN EC PRIVATE KEY-----\n" + canary + "\n" + canary, canary + "\n" + canary + "=\n-----END PRIVATE KEY-----",
		"client-certificate-data: LS0tLS1CRUdJTi" + canary, "LS0tLS1CRUdJTi" + canary + "==",
		"password: |\n  " + canary + "\n  " + canary, "  - token: >-\n      " + canary + "\n\n      " + canary + "\n",
		"- name: DB_PASSWORD\n  value: " + canary, `{"name":"API_TOKEN","value":"` + canary + `"}`,
		"AGE-SECRET-KEY-1" + strings.ToUpper(canary), "ghp_" + canary + canary,
	} {
		full := "before the secret\n" + text + "\nand after it\n"
		got := r.Text(full)
		if strings.Contains(strings.ToLower(got), strings.ToLower(canary)) {
			t.Errorf("%q became\n%s", text, got)
		}
		if !strings.Contains(got, Removed) || !strings.Contains(got, "before the") {
			t.Errorf("%q became\n%s", text, got)
		}
	}
	for _, text := range []string{key32, "key " + key32 + ".", "abcdef.0123456789abcdef"} {
		if got := r.Text(text); strings.Contains(got, text) || strings.Contains(got, key32) {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// What helps to find a fault stays as it is.
func TestWhatIsOrdinaryStays(t *testing.T) {
	r := New([]string{"tiny"})
	for _, text := range []string{
		"time=2026-11-21T12:00:00Z level=INFO msg=\"ready\" component=engine after=7.1s",
		"/var/lib/rivulet/bundle/" + strings.Repeat("0123456789abcdef", 4) + "/bin/runc",
		"containerd://" + strings.Repeat("ab", 32), "id zmycf6zwybvptygr7dzj6rl74gtdlrvu", "10.42.0.0/16 dev cni0", "02:77:00:00:00:0b",
		"-A KUBE-SVC-TCOU7JCQXEZGVUNU ! -s 10.42.0.0/16 -d 10.43.0.10/32 -p udp -m comment --comment \"kube-system/kube-dns:dns cluster IP\" -j KUBE-MARK-MASQ",
		"registry.example/app@sha256:" + strings.Repeat("0", 64), "user@host in a sentence", "https://registry.example/v2/",
		"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "the author: somebody", "v1.35.0-k3s3", "tiny words stay", "basic things",
	} {
		if got := r.Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestKnownSecretsGoAnywhere(t *testing.T) {
	r := New([]string{"correcthorse", "correcthorsebattery", "correcthorse"})
	if got := r.Text("x=correcthorsebattery; y(correcthorse)"); got != "x="+Removed+"; y("+Removed+")" {
		t.Errorf("%q", got)
	}
	var none *Redactor
	if got := none.Text("password: " + canary); strings.Contains(got, canary) {
		t.Errorf("%q", got)
	}
}

// A known secret never comes out, whatever it is made of and whatever is around it.
func TestKnownSecretsNeverComeOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[A-Za-z0-9+/=._:-]{6,40}`).Draw(t, "secret")
		text := rapid.String().Draw(t, "before") + secret + rapid.String().Draw(t, "after")
		if strings.Contains(Removed, secret) {
			return
		}
		if got := New([]string{secret}).Text(text); strings.Contains(got, secret) && !strings.Contains(strings.ReplaceAll(text, secret, ""), secret) &&
			!strings.Contains(strings.ReplaceAll(text, secret, Removed), secret) {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

func FuzzTextEndsAndIsStable(f *testing.F) {
	f.Add("password: x\n" + key32)
	f.Add("token: |\n  x\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := New(nil)
		once := r.Text(text)
		if strings.Contains(once, "BEGIN PRIVATE KEY-----\nM") {
			t.Errorf("%q", once)
		}
		r.Text(once)
	})
}
