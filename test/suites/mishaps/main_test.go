// Package mishaps makes the mishaps that people have with a device, one by one, on two real ones, and
// carries out what Rivulet writes about each: `status`, `pods`, `why` and `doctor` name the cause, and
// the cure that is shown, run word by word, ends it. See docs/design/mishaps.md.
package mishaps

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

var (
	suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
		a, b = s.Devices["a"], s.Devices["b"]
		return labtest.PeeredWithImage(ctx, s)
	}}
	a, b *lab.Device // everything happens on a, b is its peer
)

func TestMain(m *testing.M) {
	suite.Main(m, "mishaps", lab.Options{Devices: 2, Env: map[string][]string{"": {"RIVULET_RESERVE_CPU=" + mainjob.ReserveCPU()}}})
}

// step is something that the test does, or a person by hand. ns is the mishap's namespace on a.
type step func(t *testing.T, ctx context.Context, ns string)

// mishap is one, how it shows and what ends it.
type mishap struct {
	name string
	// before is done once the namespace is there; then objects are made on a, which are YAML; harm comes last.
	// The namespace is removed at the end.
	before  step
	objects string
	harm    step
	// why is what `rivulet why` is asked about.
	why string
	// shows are words that a screen has, on one line: of "status", "pods", "why" and "doctor".
	shows map[string]string
	// from is the screen whose cure is carried out; "" is why.
	from string
	// fills are the words in upper case that only a person can fill in.
	fills map[string]string
	// hands do what no command does: a cure with these words.
	hands map[string]step
	// over reports what is left of it; nil: all pods of the namespace run or ran to their end.
	over func(t *testing.T, ctx context.Context, ns string) error
	// after tidies up, whatever came.
	after step
}

// rounds bounds how many cures are carried out until it is over: one may show the next thing.
const rounds = 3

// screens are the four, in the order in which a person tries them.
var screens = []string{"status", "pods", "why", "doctor"}

func play(t *testing.T, m mishap) {
	ctx := suite.Bounded(t, 2*time.Minute)
	ns := namespace(m.name)
	in := func(s string) string { return strings.ReplaceAll(s, "NAMESPACE", ns) }
	if m.after != nil {
		t.Cleanup(func() { m.after(t, suite.Bounded(t, time.Minute), ns) })
	}
	if m.objects != "" {
		apply(t, ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: "+ns+"}}")
		labtest.CleanUp(t, func(ctx context.Context) {
			labtest.On(t, ctx, a, "rivulet", "kubectl", "delete", "deployments,jobs,pods", "--all", "-n", ns, "--now", "--timeout=20s")
			labtest.On(t, ctx, a, "rivulet", "kubectl", "delete", "namespace", ns, "--wait=false")
		})
	}
	if m.before != nil {
		m.before(t, ctx, ns)
	}
	if m.objects != "" {
		apply(t, ctx, in(m.objects))
	}
	if m.harm != nil {
		m.harm(t, ctx, ns)
	}
	m.why = in(m.why)
	for _, screen := range screens {
		words := in(m.shows[screen])
		if words == "" {
			continue
		}
		await.NoError(t, ctx, 45*time.Second, screen+" shows "+words, func() error {
			if out := look(t, ctx, screen, m.why); !matches(out, words) {
				return fmt.Errorf("%q is not in\n%s", words, out)
			}
			return nil
		})
	}
	over := func() error { return podsRun(t, ctx, ns) }
	if m.over != nil {
		over = func() error { return m.over(t, ctx, ns) }
	}
	if over() == nil {
		t.Fatal("it is over before anything was done")
	}
	var done []string
	for len(done) < rounds && over() != nil {
		await.NoError(t, ctx, 30*time.Second, "its end, or a cure that was not carried out yet", func() error {
			if over() == nil {
				return nil
			}
			text := look(t, ctx, m.screen(), m.why)
			do, what := m.cure(t, from(text, in(m.shows[m.screen()])), ns)
			if do == nil || slices.Contains(done, what) {
				return fmt.Errorf("%s has no further cure that can be carried out:\n%s", m.screen(), text)
			}
			t.Logf("cure: %s", what)
			done = append(done, what)
			return do(ctx)
		})
		settle, cancel := context.WithTimeout(ctx, 20*time.Second)
		_ = await.Until(settle, over) // else the next cure
		cancel()
	}
	if err := over(); err != nil {
		t.Fatalf("after the cures %q: %v\n%s", done, err, look(t, ctx, m.screen(), m.why))
	}
	if len(done) == 0 {
		t.Error("it went without a cure")
	}
}

func (m mishap) screen() string {
	if m.from == "" {
		return "why"
	}
	return m.from
}

func look(t *testing.T, ctx context.Context, screen, why string) string {
	args := []string{"rivulet", screen}
	if screen == "why" {
		args = append(args, why)
	}
	r := labtest.On(t, ctx, a, args...)
	return r.Out + r.ErrOut
}

// matches finds words, in this order, with anything between them where "…" stands, on one line.
func matches(out, words string) bool {
	parts := strings.Split(words, "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(strings.Join(parts, ".*")).MatchString(out)
}

// from is a screen from the line on that has the words: other problems are not this mishap's.
func from(text, words string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, slices.IndexFunc(lines, func(l string) bool { return matches(l, words) })):], "\n")
}

// marks stand before a cure: of why, of status and errors, and of doctor.
var marks = regexp.MustCompile(`(?m)(?:^ +cure: |; | → )(.*)$`)

// command is one in a cure: at its beginning or after ": ", to "; " or the end (docs/design/mishaps.md).
var command = regexp.MustCompile(`(?:^|: )((?:sudo )?(?:rivulet|iptables|chmod|chown|mv|rm|ip|sysctl|systemctl|nft) [^;]+)`)

// cure is the first that a screen shows: what carries it out, and its words.
func (m mishap) cure(t *testing.T, screen, ns string) (do func(context.Context) error, what string) {
	for _, found := range marks.FindAllStringSubmatch(screen, -1) {
		text := found[1]
		for words, hand := range m.hands {
			if strings.Contains(text, words) {
				return func(ctx context.Context) error { hand(t, ctx, ns); return nil }, words
			}
		}
		c := command.FindStringSubmatch(text)
		if c == nil {
			continue
		}
		line := strings.TrimSpace(c[1])
		for word, value := range m.fills {
			line = strings.ReplaceAll(line, word, value)
		}
		line = strings.ReplaceAll(line, "sudo ", "") // the lab's person is root
		return func(ctx context.Context) error {
			_, err := a.Run(ctx, "sh", "-c", line)
			return err
		}, line
	}
	return nil, ""
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

func namespace(name string) string {
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-")
}

func apply(t *testing.T, ctx context.Context, objects string) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, "the objects are made", func() error {
		_, err := a.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", objects)
		return err
	})
}

// podsRun is nil if the namespace has pods, and all run and are ready, or ran to their end.
func podsRun(t *testing.T, ctx context.Context, ns string) error {
	out := labtest.Kubectl(t, ctx, a, "get", "pods", "-n", ns, "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.phase} {.status.conditions[?(@.type=="Ready")].status} {.metadata.deletionTimestamp}{"\n"}{end}`)
	if strings.TrimSpace(out) == "" {
		return fmt.Errorf("there are no pods")
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) != 3 || f[1] != "Succeeded" && f[2] != "True" {
			return fmt.Errorf("not all pods run:\n%s", out)
		}
	}
	return nil
}
