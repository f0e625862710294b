package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"rivulet/image/signed"
)

// orDraft ends the cures: a draft is refused for none of these reasons.
const orDraft = ", or make a draft: DRAFT=1"

const (
	reportPage = "docs/reference/suites.md"
	suitesFile = "test/suites.yaml"
	changesLog = "CHANGELOG.md"
)

// origin is where a release comes from: the tree, and what the Makefile links into the binaries.
type origin struct {
	tree, version, built string // built: seconds since 1970
	rootKeys, generation string
	key, certificate     string // files, of those who sign
	releases, contact    string // addresses: where it will lie, and where to report what must not be public
	draft                bool
	once                 bool // nothing was built twice
}

// check returns all reasons why this must not be released, each with its cure. A draft only has to say in its version
// that it is one.
func (o origin) check(ctx context.Context) error {
	if o.draft {
		if !strings.Contains(o.version, "draft") {
			return fmt.Errorf("the version of a draft says so, and %s does not; leave VERSION= out", o.version)
		}
		return o.checkDraft()
	}
	if o.once {
		return fmt.Errorf("what is released is built twice and compared; leave TWICE= out%s", orDraft)
	}
	return errors.Join(o.checkCommit(ctx), o.checkAddresses(), o.checkChanges(), o.checkKeys(), o.checkGeneration(ctx), o.checkReport(ctx))
}

func (o origin) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", o.tree}, args...)...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %s", args[0], strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// checkCommit demands a tree that is the commit of the tag, with no file more: a Go file that git does not know would be
// compiled in.
func (o origin) checkCommit(ctx context.Context) error {
	changed, err := o.git(ctx, "-c", "core.excludesFile=/dev/null", "status", "--porcelain", "--untracked-files=normal")
	if err != nil {
		return fmt.Errorf("%w; make release in a clone of the repository%s", err, orDraft)
	}
	var errs []error
	if changed != "" {
		first, _, _ := strings.Cut(changed, "\n")
		errs = append(errs, fmt.Errorf("the tree is not its commit (%s); look at git status, and commit or remove what it names%s", strings.TrimSpace(first), orDraft))
	}
	tags, err := o.git(ctx, "tag", "--points-at", "HEAD")
	if err != nil || !slices.Contains(strings.Fields(tags), o.version) {
		errs = append(errs, fmt.Errorf("%s is no tag of this commit; git tag -a vX.Y.Z -m vX.Y.Z%s", o.version, orDraft))
	}
	return errors.Join(errs...)
}

// checkAddresses demands what a user needs to get the release and to report a fault of it.
func (o origin) checkAddresses() error {
	if o.releases == "" || o.contact == "" {
		return errors.New("nobody knows where the release lies or where to report a fault; write RELEASES and CONTACT into the Makefile, and into the pages that go test ./test/arch names" + orDraft)
	}
	if !strings.HasPrefix(o.releases, "https://") || strings.HasSuffix(o.releases, "/") {
		return fmt.Errorf("install.sh comes from %s, and whoever is on the way could change it; write an address with https:// and without a slash at its end into RELEASES of the Makefile%s", o.releases, orDraft)
	}
	return nil
}

// checkChanges demands the version's section below an empty list of what is not released. A version before the final one
// needs none.
func (o origin) checkChanges() error {
	number := strings.TrimPrefix(o.version, "v")
	if strings.Contains(number, "-") {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(o.tree, changesLog))
	if err != nil {
		return fmt.Errorf("%w; make release in a clone of the repository%s", err, orDraft)
	}
	section := regexp.MustCompile(`(?m)^## Unreleased\n+## ` + regexp.QuoteMeta(number) + ` - \d{4}-\d\d-\d\d$`)
	if !section.Match(text) {
		return fmt.Errorf("%s does not begin with an empty section Unreleased and then \"## %s - DATE\"; write them, test and tag that commit%s", changesLog, number, orDraft)
	}
	return nil
}

// checkKeys demands a certificate that the binaries take: of the committed root keys, of which one may be lost, and of
// the generation that is linked in, so that a fresh device refuses the same keys as one that has taken this release.
func (o origin) checkKeys() error {
	published, err := signed.ReadRoots(filepath.Join(o.tree, signed.RootsFile))
	if err != nil {
		return err
	}
	var errs []error
	if len(published.Roots) < 2 {
		errs = append(errs, fmt.Errorf("%s has %d root keys, and a release needs two, one of them a spare that is kept off-line; make them by docs/design/keys.md%s", signed.RootsFile, len(published.Roots), orDraft))
	}
	if o.rootKeys != published.Keys() || o.generation != strconv.Itoa(published.Oldest) {
		errs = append(errs, fmt.Errorf("ROOT_KEYS and MIN_GENERATION are not those of %s; leave them out%s", signed.RootsFile, orDraft))
	}
	if o.key == "" || o.certificate == "" {
		return errors.Join(append(errs, fmt.Errorf("nobody signs it; make release SIGN_KEY=FILE SIGN_CERT=FILE (docs/design/keys.md)%s", orDraft))...)
	}
	if _, err := os.Stat(o.key); err != nil {
		errs = append(errs, fmt.Errorf("%w; name the signing key's file with SIGN_KEY=%s", err, orDraft))
	}
	c, err := o.readCertificate()
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("%s: %w; make the certificate by docs/design/keys.md%s", o.certificate, err, orDraft))
	case !c.Vouched(published.Trust()):
		errs = append(errs, fmt.Errorf("%s is by none of the keys of %s; have one of them certify the signing key, by docs/design/keys.md%s", o.certificate, signed.RootsFile, orDraft))
	case c.Generation != published.Oldest:
		errs = append(errs, fmt.Errorf("%s is of generation %d, and %s has %d; write \"generation %d\" there if it is lower, else have the key certified for %d%s",
			o.certificate, c.Generation, signed.RootsFile, published.Oldest, c.Generation, published.Oldest, orDraft))
	}
	return errors.Join(errs...)
}

func (o origin) readCertificate() (c signed.Certificate, err error) {
	raw, err := os.ReadFile(o.certificate)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(raw, &c)
}

// checkDraft refuses a draft that devices would take: it is tested by nobody.
func (o origin) checkDraft() error {
	if o.key == "" && o.certificate == "" {
		return nil
	}
	published, err := signed.ReadRoots(filepath.Join(o.tree, signed.RootsFile))
	if err != nil {
		return err
	}
	c, err := o.readCertificate()
	if err != nil {
		return fmt.Errorf("the certificate %q: %w; leave SIGN_KEY= and SIGN_CERT= out", o.certificate, err)
	}
	if c.Vouched(published.Trust()) {
		return fmt.Errorf("devices take what the key of %s signs, and a draft is tested by nobody; leave SIGN_KEY= and SIGN_CERT= out, or sign it with a key of your own", o.certificate)
	}
	return nil
}

// checkGeneration demands that the lowest generation is not lower than any release's: keys that were retired would be
// taken again.
func (o origin) checkGeneration(ctx context.Context) error {
	now, err := signed.ReadRoots(filepath.Join(o.tree, signed.RootsFile))
	if err != nil {
		return nil //nolint:nilerr // checkKeys says it
	}
	tags, err := o.git(ctx, "tag", "--list", "v[0-9]*")
	if err != nil {
		return err
	}
	for _, tag := range strings.Fields(tags) {
		if has, err := o.git(ctx, "ls-tree", "--name-only", tag, signed.RootsFile); tag == o.version || err == nil && has == "" {
			continue // a release of before there were keys has no such file
		}
		text, err := o.git(ctx, "show", tag+":"+signed.RootsFile)
		if err != nil {
			return fmt.Errorf("%w; look at git show %s:%s", err, tag, signed.RootsFile)
		}
		before, err := signed.ParseRoots(text)
		if err != nil {
			return fmt.Errorf("%s of %s: %w; look at git show %s:%s", signed.RootsFile, tag, err, tag, signed.RootsFile)
		}
		if now.Oldest < before.Oldest {
			return fmt.Errorf("%s has generation %d, and that of %s has %d: keys that are retired would be taken again; write at least \"generation %d\" there%s",
				signed.RootsFile, now.Oldest, tag, before.Oldest, before.Oldest, orDraft)
		}
	}
	return nil
}

var (
	reportOf  = regexp.MustCompile(`(?m)^# .* of commit ([0-9a-f]{7,40})$`)
	reportRow = regexp.MustCompile(`(?m)^\| ([a-z0-9]+) \| [0-9.]+ \| ([a-z A-Z]+)`)
	suiteName = regexp.MustCompile(`(?m)^  - name: (.+)$`)
)

// checkReport demands that all suites have passed on this commit, or on one from which nothing differs but their page:
// committing the page makes another commit.
func (o origin) checkReport(ctx context.Context) error {
	again := "make check-all, commit " + reportPage + " and tag that commit" + orDraft
	page, err := os.ReadFile(filepath.Join(o.tree, reportPage))
	if err != nil {
		return fmt.Errorf("%w; %s", err, again)
	}
	suites, err := os.ReadFile(filepath.Join(o.tree, suitesFile))
	if err != nil {
		return fmt.Errorf("%w; %s", err, again)
	}
	of := reportOf.FindSubmatch(page)
	if of == nil {
		return fmt.Errorf("%s is of no commit; %s", reportPage, again)
	}
	tested := string(of[1])
	if _, err := o.git(ctx, "merge-base", "--is-ancestor", tested, "HEAD"); err != nil {
		return fmt.Errorf("%s is of %s, which is not in the history of this commit; %s", reportPage, tested, again)
	}
	differs, err := o.git(ctx, "diff", "--name-only", "--no-renames", tested, "HEAD")
	if err != nil {
		return fmt.Errorf("%w; %s", err, again)
	}
	for _, file := range strings.Fields(differs) {
		if file != reportPage {
			return fmt.Errorf("%s is of %s, and %s differs from it; %s", reportPage, tested, file, again)
		}
	}
	ended := map[string]string{}
	for _, row := range reportRow.FindAllSubmatch(page, -1) {
		ended[string(row[1])] = string(row[2])
	}
	all := suiteName.FindAllSubmatch(suites, -1)
	if len(all) == 0 {
		return fmt.Errorf("%s names no suite; %s", suitesFile, again)
	}
	for _, s := range all {
		if name := string(s[1]); ended[name] != "pass" {
			return fmt.Errorf("%s says of the suite %s: %q; %s", reportPage, name, ended[name], again)
		}
	}
	return nil
}
