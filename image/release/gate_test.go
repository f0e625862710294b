package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/signed"
)

const goodReport = "# The device suites, all in one run of commit %s\n\n| suite | minutes | result | guards |\n|---|---|---|---|\n| demo | 1.0 | pass, 3 tests | a |\n| ops | 10.5 | pass, 3 tests, 1 skipped: b | c |\n"

// releasable makes a tree that may be released, in the way of docs/design/release.md.
func releasable(t *testing.T) (repository, origin) {
	t.Helper()
	r, keys := newRepository(t), t.TempDir()
	rootA, root, _ := ed25519.GenerateKey(nil)
	rootB, _, _ := ed25519.GenerateKey(nil)
	key, _, _ := ed25519.GenerateKey(nil)
	text := base64.StdEncoding.EncodeToString
	certificate, err := json.Marshal(signed.Certify(root, key, 3))
	if err != nil {
		t.Fatal(err)
	}
	r.commit(signed.RootsFile, "generation 3\nroot "+text(rootA)+" a\nroot "+text(rootB)+" b\n")
	r.commit(suitesFile, "suites:\n  - name: demo\n    minutes: 1\n  - name: ops\n")
	r.commit(changesLog, "# Changes\n\n## Unreleased\n\n## 0.1.0 - 2026-12-01\n\n- x\n")
	r.commit(reportPage, fmt.Sprintf(goodReport, r.git("rev-parse", "--short=8", "HEAD")))
	r.tag("v0.1.0")
	return r, origin{tree: r.dir, version: r.version(), built: "1700000000", rootKeys: text(rootA) + "," + text(rootB), generation: "3",
		releases: "https://example.org/rivulet", contact: "a@example.org", key: write(t, keys, "signing.key", nil), certificate: write(t, keys, "signing.cert", certificate)}
}

// What devices take is no draft, of whatever generation the certificate is; one's own key may sign one.
func TestADraftIsNotSignedForDevices(t *testing.T) {
	r, o := releasable(t)
	o.draft, o.version = true, r.version("DRAFT=1")
	if err := o.check(t.Context()); err == nil || !strings.Contains(err.Error(), "leave SIGN_KEY= and SIGN_CERT= out") {
		t.Errorf("a draft that devices take: %v", err)
	}
	key, own, _ := ed25519.GenerateKey(nil)
	raw, err := json.Marshal(signed.Certify(own, key, 1))
	if err != nil {
		t.Fatal(err)
	}
	o.certificate = write(t, t.TempDir(), "c", raw)
	if err := o.check(t.Context()); err != nil {
		t.Errorf("a draft with a key of one's own: %v", err)
	}
}

// The lowest generation never goes down, or a retired key would be good again.
func TestTheGenerationDoesNotGoDown(t *testing.T) {
	r, o := releasable(t)
	o.version = "v0.2.0"
	roots, err := os.ReadFile(filepath.Join(r.dir, signed.RootsFile))
	if err != nil {
		t.Fatal(err)
	}
	r.commit(signed.RootsFile, strings.Replace(string(roots), "generation 3", "generation 2", 1))
	if err := o.checkGeneration(t.Context()); err == nil || !strings.Contains(err.Error(), "and that of v0.1.0 has 3") || !strings.Contains(err.Error(), "at least \"generation 3\"") {
		t.Error(err)
	}
	r.commit(signed.RootsFile, strings.Replace(string(roots), "generation 3", "generation 4", 1))
	if err := o.checkGeneration(t.Context()); err != nil {
		t.Error(err)
	}
}

// Everything for which a release is refused, each with a cure. A draft is made all the same.
func TestWhatMakeReleaseRefuses(t *testing.T) {
	// moved commits a change and tags it, tested where it is.
	moved := func(file, text string) func(*testing.T, repository, *origin) {
		return func(t *testing.T, r repository, o *origin) {
			r.git("tag", "-d", "v0.1.0")
			r.commit(file, text)
			if file != reportPage {
				r.commit(reportPage, fmt.Sprintf(goodReport, r.git("rev-parse", "--short=8", "HEAD")))
			}
			r.tag("v0.1.0")
		}
	}
	for name, tc := range map[string]struct {
		change func(*testing.T, repository, *origin)
		want   string // empty: released
	}{
		"good": {func(*testing.T, repository, *origin) {}, ""},
		"before a final version": {func(_ *testing.T, r repository, o *origin) {
			r.git("tag", "-d", "v0.1.0")
			r.tag("v0.1.0-rc.1")
			o.version = r.version()
		}, ""},
		"untagged": {func(_ *testing.T, r repository, o *origin) {
			r.git("tag", "-d", "v0.1.0")
			o.version = r.version()
		}, "v0.1.1-dev.4 is no tag of this commit"},
		"tag of another commit": {func(_ *testing.T, r repository, _ *origin) { r.commit("a", "b") }, "v0.1.0 is no tag of this commit"},
		"another version":       {func(_ *testing.T, _ repository, o *origin) { o.version = "v9.0.0" }, "v9.0.0 is no tag"},
		"dirty":                 {func(t *testing.T, r repository, _ *origin) { write(t, r.dir, changesLog, []byte("x")) }, "the tree is not its commit (M CHANGELOG.md)"},
		"a file more":           {func(t *testing.T, r repository, _ *origin) { write(t, r.dir, "more.go", nil) }, "the tree is not its commit (?? more.go)"},
		"no git": {func(t *testing.T, r repository, _ *origin) {
			if err := os.RemoveAll(filepath.Join(r.dir, ".git")); err != nil {
				t.Fatal(err)
			}
		}, "make release in a clone"},
		"an address that anybody on the way can change": {func(_ *testing.T, _ repository, o *origin) { o.releases = "http://example.org/rivulet" }, "write an address with https://"},
		"no address":           {func(_ *testing.T, _ repository, o *origin) { o.releases = "" }, "write RELEASES and CONTACT into the Makefile"},
		"nobody to report to":  {func(_ *testing.T, _ repository, o *origin) { o.contact = "" }, "write RELEASES and CONTACT into the Makefile"},
		"no section":           {moved(changesLog, "## Unreleased\n\n- x\n"), "and then \"## 0.1.0 - DATE\""},
		"something unreleased": {moved(changesLog, "## Unreleased\n\n- y\n\n## 0.1.0 - 2026-12-01\n"), "does not begin with an empty section Unreleased"},
		"no root keys": {func(t *testing.T, r repository, o *origin) {
			moved(signed.RootsFile, "generation 3\n")(t, r, o)
			o.rootKeys = ""
		}, "has 0 root keys, and a release needs two"},
		"one root key": {func(t *testing.T, r repository, o *origin) {
			o.rootKeys, _, _ = strings.Cut(o.rootKeys, ",")
			moved(signed.RootsFile, "generation 3\nroot "+o.rootKeys+" a\n")(t, r, o)
		}, "has 1 root keys, and a release needs two"},
		"built once":          {func(_ *testing.T, _ repository, o *origin) { o.once = true }, "is built twice and compared; leave TWICE= out"},
		"other root keys":     {func(_ *testing.T, _ repository, o *origin) { o.rootKeys += "," + o.rootKeys }, "ROOT_KEYS and MIN_GENERATION are not those of"},
		"another generation":  {func(_ *testing.T, _ repository, o *origin) { o.generation = "2" }, "ROOT_KEYS and MIN_GENERATION are not those of"},
		"damaged roots":       {moved(signed.RootsFile, "generation 3\nroot AAAA a\n"), "is no public key"},
		"unsigned":            {func(_ *testing.T, _ repository, o *origin) { o.key, o.certificate = "", "" }, "nobody signs it"},
		"no certificate":      {func(_ *testing.T, _ repository, o *origin) { o.certificate = "" }, "nobody signs it"},
		"no key file":         {func(_ *testing.T, _ repository, o *origin) { o.key += "x" }, "name the signing key's file"},
		"damaged certificate": {func(t *testing.T, _ repository, o *origin) { o.certificate = write(t, t.TempDir(), "c", []byte("{")) }, "make the certificate by"},
		"a stranger's": {func(t *testing.T, _ repository, o *origin) {
			key, stranger, _ := ed25519.GenerateKey(nil)
			raw, err := json.Marshal(signed.Certify(stranger, key, 3))
			if err != nil {
				t.Fatal(err)
			}
			o.certificate = write(t, t.TempDir(), "c", raw)
		}, "is by none of the keys"},
		"an older certificate": {ofTheRoot(2), "is of generation 2, and image/signed/roots has 3"},
		"a newer certificate":  {ofTheRoot(4), "is of generation 4, and image/signed/roots has 3"},
		"report of an older commit": {func(_ *testing.T, r repository, _ *origin) {
			r.git("tag", "-d", "v0.1.0")
			r.commit("product.go", "package x")
			r.tag("v0.1.0")
		}, "and product.go differs from it"},
		"report of a side branch": {func(t *testing.T, r repository, o *origin) {
			r.git("checkout", "-q", "-b", "side")
			r.commit("product.go", "package x")
			side := r.git("rev-parse", "--short=8", "HEAD")
			r.git("checkout", "-q", "main")
			moved(reportPage, fmt.Sprintf(goodReport, side))(t, r, o)
		}, "which is not in the history of this commit"},
		"report of a commit that is not there": {moved(reportPage, fmt.Sprintf(goodReport, "0123abcd")), "which is not in the history of this commit"},
		"report of changed files":              {moved(reportPage, fmt.Sprintf(goodReport, "0123abcd-dirty")), "is of no commit"},
		"no run yet":                           {moved(reportPage, "# The device suites, all in one run\n"), "is of no commit"},
		"a suite is missing": {func(t *testing.T, r repository, o *origin) {
			moved(reportPage, fmt.Sprintf(strings.Replace(goodReport, "| ops", "| other", 1), r.git("rev-parse", "HEAD")))(t, r, o)
		}, `says of the suite ops: ""`},
		"a suite failed": {func(t *testing.T, r repository, o *origin) {
			moved(reportPage, fmt.Sprintf(strings.Replace(goodReport, "pass, 3 tests, 1", "FAIL, 2 tests, 1", 1), r.git("rev-parse", "HEAD")))(t, r, o)
		}, `says of the suite ops: "FAIL"`},
		"a suite did not run": {func(t *testing.T, r repository, o *origin) {
			moved(reportPage, fmt.Sprintf(strings.Replace(goodReport, "pass, 3 tests |", "skipped, 0 tests |", 1), r.git("rev-parse", "HEAD")))(t, r, o)
		}, `says of the suite demo: "skipped"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, o := releasable(t)
			tc.change(t, r, &o)
			err := o.check(t.Context())
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want == "":
			case err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "; "):
				t.Errorf("%v, want %q and a cure", err, tc.want)
			}
			o.draft = true
			if err := o.check(t.Context()); err == nil || !strings.Contains(err.Error(), "the version of a draft says so") {
				t.Errorf("a draft with the version %s: %v", o.version, err)
			}
			o.version, o.key, o.certificate = r.version("DRAFT=1"), "", ""
			if err := o.check(t.Context()); err != nil {
				t.Errorf("a draft: %v", err)
			}
		})
	}
}

// ofTheRoot puts the certificate of a root key of the tree in place, for another generation.
func ofTheRoot(generation int) func(*testing.T, repository, *origin) {
	return func(t *testing.T, r repository, o *origin) {
		public, root, _ := ed25519.GenerateKey(nil)
		key, _, _ := ed25519.GenerateKey(nil)
		text := base64.StdEncoding.EncodeToString(public)
		_, other, _ := strings.Cut(o.rootKeys, ",")
		o.rootKeys = text + "," + other
		r.git("tag", "-d", "v0.1.0")
		r.commit(signed.RootsFile, "generation 3\nroot "+text+" a\nroot "+other+" b\n")
		r.commit(reportPage, fmt.Sprintf(goodReport, r.git("rev-parse", "--short=8", "HEAD")))
		r.tag("v0.1.0")
		raw, err := json.Marshal(signed.Certify(root, key, generation))
		if err != nil {
			t.Fatal(err)
		}
		o.certificate = write(t, t.TempDir(), "c", raw)
	}
}
