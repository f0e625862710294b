package hostile

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/suites/hostile/attacker"
)

// liar is a provider that says what a test wants it to.
type liar struct {
	mu    sync.Mutex
	line  string
	again chan struct{} // closed when line changes

	lines, redirects, bombs, numbers atomic.Int32 // sent
	counts                           atomic.Bool  // numbers are sent, not bombs
	to                               string       // where requests of the Kubernetes API are sent to
}

func (l *liar) say(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line = line
	if l.again != nil {
		close(l.again)
	}
	l.again = make(chan struct{})
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/v1/offer":
		w.Header().Set("Content-Type", "application/x-ndjson")
		for r.Context().Err() == nil {
			l.mu.Lock()
			line, again := l.line, l.again
			l.mu.Unlock()
			if _, err := io.WriteString(w, line+"\n"); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			l.lines.Add(1)
			select {
			case <-again:
			case <-r.Context().Done():
			case <-time.After(3 * time.Second):
			}
		}
	case r.URL.Path == "/v1/namespaces": // a twin of a namespace that the device has never sent anything of, and of one that it has
		fmt.Fprint(w, `{"twins":{"default":"y","lies":"z"}}`)
	case strings.HasPrefix(r.URL.Path, "/v1/namespaces/"):
		fmt.Fprint(w, `{"name":"z"}`)
	case strings.HasPrefix(r.URL.Path, "/k8s/") && strings.Contains(r.URL.Path, "/persistentvolumeclaims"):
		l.redirects.Add(1)
		http.Redirect(w, r, l.to, http.StatusTemporaryRedirect)
	case strings.HasPrefix(r.URL.Path, "/k8s/") && l.counts.Load(): // of a billion digits, in a list, an event or an answer
		l.numbers.Add(1)
		w.Header().Set("Content-Type", "application/json")
		const pod = `"kind":"Pod","apiVersion":"v1","metadata":{"name":"away","namespace":"z","uid":"1","resourceVersion":"2"},
 "spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"1e999999999"}}}]},"status":{"phase":"Running","containerStatuses":[{"name":"c","allocatedResources":{"memory":"1e999999999"}}]}`
		switch {
		case r.URL.Query().Get("watch") != "":
			fmt.Fprintf(w, `{"type":"MODIFIED","object":{%s}}`+"\n", pod)
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods"):
			fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"2"},"items":[{%s}]}`, pod)
		default:
			fmt.Fprintf(w, `{%s}`, pod)
		}
	case strings.HasPrefix(r.URL.Path, "/k8s/"): // a thousand times as large as it is
		l.bombs.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		spaces := make([]byte, 1<<20)
		for i := range spaces {
			spaces[i] = ' '
		}
		for range 1 << 10 {
			if _, err := z.Write(spaces); err != nil {
				return
			}
		}
	default:
		http.NotFound(w, r)
	}
}

// supervisor is the process of the victim's supervisor, and its own memory in MiB.
func supervisor(t *testing.T, ctx context.Context) (pid string, memory int) {
	t.Helper()
	// Commands have the same name, and are younger.
	out := labtest.Output(t, ctx, victim, "sh", "-c", `for p in $(ls /proc | grep -x '[0-9]*' | sort -n); do
 [ "$(tr -d '\0' <"/proc/$p/cmdline" 2>/dev/null)" = "rivulet " ] && echo $p $(grep RssAnon /proc/$p/status | tr -dc 0-9) && break; done`)
	fields := strings.Fields(out)
	if len(fields) != 2 {
		t.Fatalf("there is no supervisor: %q", out)
	}
	kib, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return fields[0], kib >> 10
}

// A device takes any cluster of its LAN as a provider. Whatever that answers, the device goes on: no line of it ends or fills
// the supervisor, or makes it send a request elsewhere; the target is not ready, says why, and is ready again with the first
// line that is an offer.
func TestAProviderIsBelievedInNothing(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	const good = `{"ready":true,"os":"linux","architecture":"amd64","kubeVersion":"v1.35.0","keeps":true,"allocatable":{"cpu":"4","memory":"8Gi","pods":"50","ephemeral-storage":"20Gi"}}`
	var reached atomic.Int32
	inside, err := victim.Listen("127.0.0.1:9200") // a database of the owner's that trusts its host
	if err != nil {
		t.Fatal(err)
	}
	database := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) })}
	t.Cleanup(func() { database.Close() })
	go database.Serve(inside)
	if resp, err := victim.HTTP().Get("http://127.0.0.1:9200/"); err != nil || reached.Swap(0) != 1 {
		t.Fatal("not judged: the owner does not reach its database: ", err)
	} else {
		resp.Body.Close()
	}

	l := &liar{to: "http://127.0.0.1:9200/index"}
	l.say(good)
	a := attacker.New(t, suite.Lab, "liar", "10.77.0.80")
	a.Peer(ctx, victimAddr, attacker.Options{Serve: l})
	rid(t, ctx, a)
	node := func() (name, ready, why string) {
		out, err := victim.Kubectl(ctx, "get", "nodes", "-l", "rivulet.dev/virtual-node="+a.ID, "-o",
			`jsonpath={range .items[*]}{.metadata.name}{"|"}{.status.conditions[?(@.type=="Ready")].status}{"|"}{.status.conditions[?(@.type=="Ready")].message}{"\n"}{end}`)
		if err != nil {
			return "", "", err.Error()
		}
		part := strings.SplitN(strings.TrimSpace(out), "|", 3)
		if len(part) != 3 {
			return "", "", out
		}
		return part[0], part[1], part[2]
	}
	becomes := func(what, ready, word string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, what, func() error {
			if name, is, why := node(); name == "" || is != ready || !strings.Contains(why, word) || strings.Contains(why, "\n") {
				return fmt.Errorf("node %q is ready: %s, %s", name, is, why)
			}
			return nil
		})
	}
	becomes("the provider is a node", "True", "")
	name, _, _ := node()
	pid, memory := supervisor(t, ctx)

	with := func(platforms string) string {
		return strings.TrimSuffix(good, "}") + `,"platforms":[` + platforms + `]}`
	}
	one := func(arch string) string { return `{"os":"linux","architecture":"` + arch + `","ready":true}` }
	many := make([]string, 5000)
	for i := range many {
		many[i] = one("a" + strconv.Itoa(i))
	}
	for what, line := range map[string]string{
		"an architecture of 63 letters": with(one("amd64") + "," + one(strings.Repeat("a", 63))),
		"an architecture of 62 letters": with(one("amd64") + "," + one(strings.Repeat("a", 62))),
		"five thousand platforms":       with(strings.Join(many, ",")),
		"a number of a billion digits":  strings.Replace(good, `"cpu":"4"`, `"cpu":"1e999999999"`, 1),
		"a negative number":             strings.Replace(good, `"cpu":"4"`, `"cpu":"-4"`, 1),
		"a label for the terminal":      strings.TrimSuffix(good, "}") + `,"labels":{"a":"\u001b[2J"}}`,
		"no JSON":                       "{\x00",
	} {
		l.say(line)
		becomes(what+" is not understood", "False", "not understood")
		l.say(good)
		becomes("the next offer is, after "+what, "True", "")
	}
	if again, _, _ := node(); again != name {
		t.Errorf("node %s became %s", name, again)
	}

	// The answers of its Kubernetes API, which the device asks once something is to run there.
	labtest.Must(t, ctx, victim, "rivulet", "kubectl", "create", "namespace", "lies")
	labtest.CleanUp(t, func(ctx context.Context) {
		_, _ = victim.Kubectl(ctx, "delete", "namespace", "lies", "--ignore-not-found", "--wait=false")
	})
	labtest.Must(t, ctx, victim, "rivulet", "offload", "lies", "--to", name)
	p := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"away","namespace":"lies"},"spec":{"terminationGracePeriodSeconds":1,"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}],
 "nodeSelector":{"kubernetes.io/hostname":"` + name + `"},"containers":[{"name":"c","image":"i.example/i","resources":{"requests":{"cpu":"10m","memory":"8Mi"}},"volumeMounts":[{"name":"data","mountPath":"/data"}]}]}}`
	claim := `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"data","namespace":"lies"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Mi"}}}}`
	for _, text := range []string{claim, p} {
		labtest.Must(t, ctx, victim, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", text)
	}
	await.NoError(t, ctx, 2*time.Minute, "the device asks the provider's API", func() error {
		if l.bombs.Load() < 5 {
			return fmt.Errorf("%d answers of a gigabyte and %d redirects were sent", l.bombs.Load(), l.redirects.Load())
		}
		return nil
	})
	l.counts.Store(true)
	await.NoError(t, ctx, 2*time.Minute, "and is told numbers that nobody can count", func() error {
		if l.numbers.Load() < 5 {
			return fmt.Errorf("%d were sent", l.numbers.Load())
		}
		return nil
	})
	labtest.Must(t, ctx, victim, "rivulet", "status") // it answers
	if n := reached.Load(); n > 0 {
		t.Errorf("%d requests of the supervisor reached the owner's database", n)
	}
	is, now := supervisor(t, ctx)
	if is != pid {
		t.Errorf("the supervisor was process %s and is %s", pid, is)
	}
	if now > memory+64 {
		t.Errorf("the supervisor has %d MiB, and had %d", now, memory)
	}
	t.Logf("%d lines, %d redirects, %d answers of a gigabyte, %d numbers; the supervisor has %d MiB, and had %d", l.lines.Load(), l.redirects.Load(), l.bombs.Load(), l.numbers.Load(), now, memory)
}
