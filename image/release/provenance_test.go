package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"rivulet/image/signed"
)

// signedRelease makes a folder bin/release in a copy of what checks it, as make release does.
func signedRelease(t *testing.T) (tree string, m making) {
	t.Helper()
	for _, tool := range []string{"dpkg-query", "jq"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool + ": make deps")
		}
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	r, o := releasable(t)
	sh(t, root, `cp --parents -r go.mod go.sum image/signed image/filesum "$1"`, r.dir)
	public, rootKey, _ := ed25519.GenerateKey(nil)
	key, signing, _ := ed25519.GenerateKey(nil)
	r.commit(signed.RootsFile, "generation 1\nroot "+base64.StdEncoding.EncodeToString(public)+" a\n")
	out := filepath.Join(r.dir, "bin/release")
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, out, "rivulet-v0.1.0-linux-amd64.zst", []byte("program"))
	write(t, out, "install.sh", []byte("script"))
	o.releases = "https://example.org/releases"
	if m, err = o.making(t.Context(), []string{"amd64"}, []string{"arm64"}); err != nil {
		t.Fatal(err)
	}
	if err := m.writeMaking(out); err != nil {
		t.Fatal(err)
	}
	if err := writeSums(out); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"SHA256SUMS", "rivulet-v0.1.0.provenance.json"} {
		content, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		d := signed.NewDigest()
		d.Write(content)
		sig, err := json.Marshal(signed.Sign(signing, signed.Certify(rootKey, key, 1), d))
		if err != nil {
			t.Fatal(err)
		}
		write(t, out, name+".sig", sig)
	}
	return r.dir, m
}

// The commands of the page, typed in a clone: they take what was released, and refuse a file, a statement and a signature
// that was changed.
func TestThePageChecksWhereAReleaseComesFrom(t *testing.T) {
	page, err := os.ReadFile("../../docs/design/release.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sh\n(go run ./image/signed/sign check .*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no such commands")
	}
	tree, m := signedRelease(t)
	try := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", string(block[1]))
		cmd.Dir, cmd.Env = tree, append(os.Environ(), "GOFLAGS=-buildvcs=false")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := try(); err != nil || !strings.Contains(out, "provenance.json: good") || !strings.Contains(out, m.commit) {
		t.Fatalf("%v: %s", err, out)
	}
	for file, why := range map[string]string{
		"install.sh":                         "install.sh: FAILED",
		"BUILDINFO":                          "BUILDINFO: FAILED",
		"rivulet-v0.1.0.provenance.json":     "the file is damaged or was changed",
		"rivulet-v0.1.0.provenance.json.sig": "the signature is not good",
		"SHA256SUMS":                         "the file is damaged or was changed",
	} {
		path := filepath.Join(tree, "bin/release", file)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Dir(path), file, []byte(strings.Replace(string(before)+"\n", `"signature":"`, `"signature":"AAAA`, 1)))
		if out, err := try(); err == nil || !strings.Contains(out, why) {
			t.Errorf("%s was changed: %v: %s; want %q", file, err, out, why)
		}
		write(t, filepath.Dir(path), file, before)
	}
}

// The statement names every file, the commit, what can be chosen, the Go and the compiler; BUILDINFO says the same to a
// reader.
func TestWhatAReleaseIsMadeOf(t *testing.T) {
	tree, m := signedRelease(t)
	out := filepath.Join(tree, "bin/release")
	raw, err := os.ReadFile(filepath.Join(out, "rivulet-v0.1.0.provenance.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest struct{ SHA256 string }
		}
		PredicateType string
		Predicate     struct {
			BuildDefinition struct {
				BuildType            string
				ExternalParameters   map[string]any
				ResolvedDependencies []struct {
					Name, URI string
					Digest    map[string]string
				}
			}
			RunDetails struct{ Builder struct{ ID string } }
		}
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	d := s.Predicate.BuildDefinition
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" || d.BuildType == "" || s.Predicate.RunDetails.Builder.ID == "" {
		t.Errorf("%s", raw)
	}
	var subjects []string
	for _, f := range s.Subject {
		subjects = append(subjects, f.Name)
		if len(f.Digest.SHA256) != 64 {
			t.Errorf("%+v", f)
		}
	}
	if want := []string{"BUILDINFO", "install.sh", "rivulet-v0.1.0-linux-amd64.zst"}; !slices.Equal(subjects, want) {
		t.Errorf("subjects %q, want %q", subjects, want)
	}
	for key, want := range map[string]any{"version": "v0.1.0", "rootKeys": m.rootKeys, "keyGeneration": "3", "releases": "https://example.org/releases", "buildTime": "2023-11-14T22:13:20Z"} {
		if d.ExternalParameters[key] != want {
			t.Errorf("%s is %v, want %v", key, d.ExternalParameters[key], want)
		}
	}
	info, err := os.ReadFile(filepath.Join(out, "BUILDINFO"))
	if err != nil {
		t.Fatal(err)
	}
	compiler := must(exec.CommandContext(t.Context(), "dpkg-query", "--show", "--showformat=${Version}", "libc6-dev").Output())
	for name, uri := range map[string]string{"go": "@" + strings.TrimPrefix(runtime.Version(), "go"), "libc6-dev": "@" + strings.ReplaceAll(string(compiler), "+", "%2B") + "?", "rivulet": ""} {
		if !slices.ContainsFunc(d.ResolvedDependencies, func(r struct {
			Name, URI string
			Digest    map[string]string
		}) bool {
			return r.Name == name && strings.Contains(r.URI, uri) && (name != "rivulet" || r.Digest["gitCommit"] == m.commit)
		}) {
			t.Errorf("%s is not at %s in %+v", name, uri, d.ResolvedDependencies)
		}
	}
	for _, want := range []string{"Version: v0.1.0\n", "Commit: " + m.commit + "\n", "Root-Keys: " + m.rootKeys + "\n", "Key-Generation: 3\n", "Go: " + runtime.Version() + "\n", "\n libc6-dev:" + runtime.GOARCH + " (= " + string(compiler) + "),\n"} {
		if !strings.Contains(string(info), want) {
			t.Errorf("%q is missing in:\n%s", want, info)
		}
	}
}

// One Go makes the whole release: the modules of the product, of runc and of the packer name the same.
func TestTheToolchainIsPinned(t *testing.T) {
	var all []string
	for _, file := range []string{"go.mod", "image/bundle/runc/go.mod", "image/package/nfpm/go.mod"} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		line := toolchainLine.FindSubmatch(text)
		if line == nil {
			t.Fatalf("%s names no toolchain", file)
		}
		all = append(all, string(line[1]))
	}
	if slices.Sort(all); len(slices.Compact(all)) != 1 {
		t.Errorf("more than one: %q", all)
	}
	o := origin{tree: "../.."}
	if err := o.checkToolchain("rivulet", []string{all[0]}); err != nil {
		t.Error(err)
	}
	if err := o.checkToolchain("rivulet", []string{all[0], "go1.0"}); err == nil || !strings.Contains(err.Error(), "GOTOOLCHAIN="+all[0]) {
		t.Errorf("another Go: %v", err)
	}
	if err := (origin{tree: t.TempDir()}).checkToolchain("rivulet", nil); err == nil {
		t.Error("without go.mod")
	}
}
