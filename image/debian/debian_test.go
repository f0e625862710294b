package debian

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

func TestListIsReadAsItIsWritten(t *testing.T) {
	all := []Deb{{"amd64", "iptables", "1.8.9-2", zeros}, {"all", "tzdata", "2026f-0", zeros}}
	if got, err := Parse(Format("# head\n", all)); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%v, %v; want %v", got, err, all)
	}
	for text, want := range map[string]string{
		"# x\n\namd64 iptables 1.8.9-2\n":         "line 3 has 3 words",
		"amd64 iptables 1.8.9-2 abc":              "line 1: \"abc\" is not a SHA-256",
		"a b c " + zeros + "\na b d " + zeros:     "line 2: b is there twice for a",
		"a b c " + zeros[1:] + "g":                "is not a SHA-256",
		"a b c " + zeros + "\nb b c " + zeros[2:]: "line 2",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The mirror is the host's, whatever way it is written down; other people's archives
// are nothing to us.
func TestSuitesUseTheHostsMirror(t *testing.T) {
	stanza := "Types: deb deb-src\nURIs: http://one.example/debian/\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n" +
		"# a comment\nTypes: deb\nURIs: http://one.example/debian-security\nSuites: bookworm-security\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n" +
		"Types: deb\nURIs: http://other.example/tools\nSuites: stable\nSigned-By: /etc/apt/keyrings/other.gpg\n"
	line := "# x\ndeb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://one.example/debian bookworm main\ndeb http://one.example/debian-security bookworm-security main\ndeb-src http://no.example/debian bookworm main\n"
	for name, text := range map[string]string{"sources.list.d/debian.sources": stanza, "sources.list": line, "sources.list.d/x.list": line} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "sources.list.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		host, err := HostSources(root)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Suites(host, "trixie", "main")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var where []string
		for l := range strings.Lines(got) {
			where = append(where, strings.Join(strings.Fields(l)[2:4], " "))
		}
		want := []string{"http://one.example/debian trixie", "http://one.example/debian trixie-updates", "http://one.example/debian trixie-backports", "http://one.example/debian-security trixie-security"}
		if !reflect.DeepEqual(where, want) {
			t.Errorf("%s: %q", name, where)
		}
	}
	if _, err := Suites(nil, "trixie", "main"); err == nil || !strings.Contains(err.Error(), "build on Debian") {
		t.Errorf("no source at all: %v", err)
	}
}

func TestSimulatedInstallation(t *testing.T) {
	out := []byte("NOTE: x\nInst bash (5.2.37-2+b10 Debian:13.2/stable [amd64])\nInst libc6:arm64 (2.41-12 Debian:13/stable [arm64])\nConf bash (5.2.37 Debian)\n")
	if got := simulated(out); !reflect.DeepEqual(got, []string{"bash=5.2.37-2+b10", "libc6=2.41-12"}) {
		t.Errorf("%q", got)
	}
}

func TestRecord(t *testing.T) {
	text := []byte("Package: libc6\nArchitecture: armhf\nVersion: 2.36-9\nDescription: x\n SHA256: not this\nSHA256: " + zeros + "\n\nPackage: libc6\nVersion: 1\n")
	if d, err := record(text, "libc6"); err != nil || d != (Deb{"armhf", "libc6", "2.36-9", zeros}) {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := record([]byte("Package: libc6\n"), "libc6"); err == nil || !strings.Contains(err.Error(), "libc6") {
		t.Errorf("a record without a version: %v", err)
	}
}

// What is in the cache is used without a network if its hash is right, and refused if not.
func TestCacheIsChecked(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir) // no apt-get
	a, err := NewApt("amd64", filepath.Join(dir, "apt"), "", "renew it")
	if err != nil {
		t.Fatal(err)
	}
	d := Deb{"amd64", "iptables", "1:1.8", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"} // of hello
	file := filepath.Join(dir, "iptables_1%3a1.8_amd64.deb")
	if _, err := a.FetchAll([]Deb{d}, dir); err == nil || !strings.Contains(err.Error(), "build on Debian, or put iptables_1%3a1.8_amd64.deb") {
		t.Errorf("without apt-get: %v", err)
	}
	if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := a.FetchAll([]Deb{d}, dir); err != nil || !reflect.DeepEqual(got, []string{file}) {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("hellp"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.FetchAll([]Deb{d}, dir); err == nil || !strings.Contains(err.Error(), "pinned is 2cf24dba") {
		t.Errorf("a changed package: %v", err)
	}
}

// The source of a package, and what is compiled into it, come from its control file.
func TestSources(t *testing.T) {
	all, err := sources("Package: busybox-static\nVersion: 1:1.37.0-6+b9\nSource: busybox (1:1.37.0-6)\nStatic-Built-Using: glibc (= 2.41-12),\n linux (= 6.12-1)\n")
	if want := []SourceVersion{{"busybox", "1:1.37.0-6"}, {"glibc", "2.41-12"}, {"linux", "6.12-1"}}; err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%v, %v", all, err)
	}
	if all, err = sources("Package: bash\nVersion: 5.2\n"); err != nil || !reflect.DeepEqual(all, []SourceVersion{{"bash", "5.2"}}) {
		t.Errorf("%v, %v", all, err)
	}
	if _, err = sources("Package: x\nVersion: 1\nBuilt-Using: gcc (>= 12)\n"); err == nil || !strings.Contains(err.Error(), "no exact version") {
		t.Error(err)
	}
}
