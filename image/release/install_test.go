package main

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"rivulet/image/signed"
)

// install.sh takes a release from a folder and from a URL, and nothing that is not signed by a
// root key of it, or is not what was signed.
func TestInstallScriptChecksWhatItInstalls(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the names below are those of amd64")
	}
	root, rootKey, _ := ed25519.GenerateKey(nil)
	_, stranger, _ := ed25519.GenerateKey(nil)
	key, signing, _ := ed25519.GenerateKey(nil)
	name := "rivulet_0.1.0_amd64.deb"
	if _, err := exec.LookPath("dpkg"); err != nil {
		name = "rivulet-v0.1.0-linux-amd64.zst"
	}
	made := func(t *testing.T, certifier ed25519.PrivateKey, lowest string) string {
		t.Helper()
		dir := t.TempDir()
		write(t, dir, name, bytes.Repeat([]byte("package"), 1000))
		finish(t, origin{rootKeys: base64.StdEncoding.EncodeToString(root), generation: lowest}, dir, "")
		all, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		d := signed.NewDigest()
		d.Write(all)
		sig, err := json.Marshal(signed.Sign(signing, signed.Certify(certifier, key, 300), d))
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, "SHA256SUMS.sig", sig)
		return dir
	}
	t.Chdir("../..")
	for _, c := range []struct {
		name, want string
		certifier  ed25519.PrivateKey
		lowest     string // 300 is the key's
		change     func(dir string)
		flags      []string
		ok         bool
	}{
		{name: "good", certifier: rootKey, want: "good: " + name, ok: true},
		{name: "another root", certifier: stranger, want: "whom this script does not trust"},
		{name: "another root, without the check", certifier: stranger, flags: []string{"--unsigned"}, want: "good: " + name, ok: true},
		{name: "of the lowest generation", certifier: rootKey, lowest: "300", want: "good: " + name, ok: true},
		{name: "retired", certifier: rootKey, lowest: "301", want: "a key that was retired (generation 300, taken is 301 or newer)"},
		{name: "retired, its generation octal", certifier: rootKey, lowest: "301", change: func(dir string) {
			sig, _ := os.ReadFile(filepath.Join(dir, "SHA256SUMS.sig"))
			write(t, dir, "SHA256SUMS.sig", bytes.Replace(sig, []byte(`"generation":300`), []byte(`"generation":0454`), 1))
		}, want: "cannot be read"},
		{name: "no lowest generation", certifier: rootKey, lowest: "x", want: "names no generation"},
		{name: "file changed", certifier: rootKey, change: func(dir string) { write(t, dir, name, []byte("other")) }, want: "not the file that SHA256SUMS names"},
		{name: "hashes changed", certifier: rootKey, change: func(dir string) { write(t, dir, "SHA256SUMS", []byte(strings.Repeat("0", 64)+"  "+name+"\n")) }, want: "changed or is damaged"},
		{name: "no signature", certifier: rootKey, change: func(dir string) { os.Remove(filepath.Join(dir, "SHA256SUMS.sig")) }, want: "has no SHA256SUMS.sig"},
		{name: "garbage", certifier: rootKey, change: func(dir string) { write(t, dir, "SHA256SUMS.sig", []byte("{}")) }, want: "cannot be read"},
		{name: "root claimed", certifier: stranger, change: func(dir string) {
			sig, _ := os.ReadFile(filepath.Join(dir, "SHA256SUMS.sig"))
			theirs := base64.StdEncoding.EncodeToString(stranger.Public().(ed25519.PublicKey))
			write(t, dir, "SHA256SUMS.sig", bytes.ReplaceAll(sig, []byte(theirs), []byte(base64.StdEncoding.EncodeToString(root))))
		}, want: "not vouched for"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := made(t, c.certifier, cmp.Or(c.lowest, "1"))
			if c.change != nil {
				c.change(dir)
			}
			server := httptest.NewServer(http.FileServer(http.Dir(dir)))
			defer server.Close()
			for _, from := range [][]string{nil, {"--from", server.URL}} {
				args := append(append([]string{filepath.Join(dir, "install.sh")}, from...), c.flags...)
				cmd := exec.CommandContext(t.Context(), "sh", args...)
				cmd.Env = append(os.Environ(), "RIVULET_DRY_RUN=1")
				out, err := cmd.CombinedOutput()
				if from != nil && c.name == "no signature" {
					c.want = "cannot get"
				}
				if (err == nil) != c.ok || !strings.Contains(string(out), c.want) {
					t.Errorf("%v: %v, %s; want %q", from, err, out, c.want)
				}
			}
		})
	}
}

// finish adds to a folder what a release has beside its files.
func finish(t *testing.T, o origin, dir, releases string) {
	t.Helper()
	o.releases = releases
	if err := o.writeInstaller(dir); err != nil {
		t.Fatal(err)
	}
	if err := writeSums(dir); err != nil {
		t.Fatal(err)
	}
}

// The one line of the README: the script comes through a pipe, and the release from where that was published.
func TestInstallScriptKnowsWhereItsReleaseIs(t *testing.T) {
	dir := t.TempDir()
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	t.Chdir("../..")
	write(t, dir, "rivulet-v0.1.0-linux-amd64.zst", nil)
	finish(t, origin{}, dir, server.URL)
	tools := map[string]string{"uname": "echo x86_64\n", "dpkg": "", "rpm": "", "zstd": "exit 0\n", "curl": "exec " + must(exec.LookPath("curl")) + ` "$@"` + "\n"}
	out, err := installWith(t, "-c", tools, fmt.Sprintf("cd /; curl -fsSL %s/install.sh | sh -s -- --unsigned", server.URL))
	if err != nil || !strings.Contains(out, "good: rivulet-v0.1.0-linux-amd64.zst") {
		t.Errorf("%v: %s", err, out)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// install.sh takes what the system is for, whatever the kernel is, and says so where there is nothing for it. The
// system's tools are fakes.
func TestInstallScriptGoesByTheSystem(t *testing.T) {
	dir := t.TempDir()
	var sums strings.Builder
	for _, name := range []string{
		"rivulet_0.1.0_amd64.deb", "rivulet_0.1.0_arm64.deb", "rivulet_0.1.0_armhf.deb",
		"rivulet-0.1.0-1.x86_64.rpm", "rivulet-0.1.0-1.aarch64.rpm", "rivulet-0.1.0-1.armv7hl.rpm",
		"rivulet-v0.1.0-linux-amd64.zst", "rivulet-v0.1.0-linux-arm64.zst", "rivulet-v0.1.0-linux-armv7.zst",
	} {
		write(t, dir, name, nil)
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(nil), name)
	}
	write(t, dir, "SHA256SUMS", []byte(sums.String()))
	script, err := filepath.Abs("../package/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	const none = "" // not there
	dpkg := func(arch string) string { return "echo " + arch + "\n" }
	rpm := dpkg
	for _, tc := range []struct{ kernel, dpkg, rpm, want string }{
		{"x86_64", dpkg("amd64"), none, "good: rivulet_0.1.0_amd64.deb"},
		{"aarch64", dpkg("arm64"), none, "good: rivulet_0.1.0_arm64.deb"},
		{"aarch64", dpkg("armhf"), none, "good: rivulet_0.1.0_armhf.deb"}, // Raspberry Pi OS of 32 bits
		{"armv7l", dpkg("armhf"), none, "good: rivulet_0.1.0_armhf.deb"},
		{"armv6l", dpkg("armhf"), none, "there is no release for armhf on armv6l"},
		{"x86_64", dpkg("i386"), none, "there is no release for i386 on x86_64"},
		{"x86_64", dpkg("amd64"), rpm("x86_64"), "good: rivulet_0.1.0_amd64.deb"}, // a Debian with rpm
		{"x86_64", none, rpm("x86_64"), "good: rivulet-0.1.0-1.x86_64.rpm"},
		{"aarch64", none, rpm("aarch64"), "good: rivulet-0.1.0-1.aarch64.rpm"},
		{"aarch64", none, rpm("arm"), "good: rivulet-0.1.0-1.armv7hl.rpm"},
		{"aarch64", none, none, "good: rivulet-v0.1.0-linux-arm64.zst"},
		{"armv8l", none, none, "good: rivulet-v0.1.0-linux-armv7.zst"},
		{"riscv64", none, none, "there is no release for riscv64"},
	} {
		out, err := installWith(t, script, map[string]string{"uname": "echo " + tc.kernel + "\n", "dpkg": tc.dpkg, "rpm": tc.rpm, "zstd": "exit 0\n"},
			"--from", dir, "--unsigned")
		if !strings.Contains(out, tc.want) || (err == nil) != strings.HasPrefix(tc.want, "good") {
			t.Errorf("%+v: %v, %s", tc, err, out)
		}
	}
}

// An openssl that cannot check the signature is no forged release.
func TestInstallScriptWithAnOldOpenssl(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "SHA256SUMS", nil)
	write(t, dir, "SHA256SUMS.sig", []byte("{}"))
	script, err := os.ReadFile("../package/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, dir, "install.sh", bytes.Replace(script, []byte("\nROOT_KEYS=\n"), []byte("\nROOT_KEYS=key\n"), 1))
	old := `case $1 in version) echo "OpenSSL 1.1.1k  FIPS 25 Mar 2021" ;; *) echo " -verify  Verify with public key" >&2; exit 1 ;; esac` + "\n"
	tools := map[string]string{"uname": "echo x86_64\n", "dpkg": "", "rpm": "", "openssl": old, "openssl3": ""}
	out, err := installWith(t, path, tools)
	if err == nil || !strings.Contains(out, "OpenSSL 1.1.1k  FIPS 25 Mar 2021 is too old, it takes openssl 3") {
		t.Errorf("%v: %s", err, out)
	}
	tools["openssl3"] = "echo ' -rawin  Indicate the input data is in raw form' >&2\n"
	if out, err = installWith(t, path, tools); err == nil || !strings.Contains(out, "SHA256SUMS.sig cannot be read") {
		t.Errorf("with openssl3: %v: %s", err, out)
	}
}

// installWith runs install.sh dry, with a PATH of these tools and what else the script calls; an empty tool is not there.
func installWith(t *testing.T, script string, tools map[string]string, args ...string) (string, error) {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"sh", "dirname", "id", "mktemp", "rm", "cp", "sed", "head", "sha256sum", "grep", "wc", "tr", "cat", "base64"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range tools {
		if text != "" {
			if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "sh"), append([]string{script}, args...)...)
	cmd.Env = []string{"PATH=" + bin, "RIVULET_DRY_RUN=1"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func write(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
