package power

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/offload/consumer/volume"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/releases"
)

// roundsEnv is how many rounds are made, if not 30, and of a long run 300; seedEnv is the seed of an earlier run.
const roundsEnv, seedEnv = "RIVULET_POWER_ROUNDS", "RIVULET_POWER_SEED"

// A claim is one whose pod appends numbers to a file, each synced before it is told: a ledger that may be anywhere.
type claim struct {
	namespace string // and the name of all its objects, and of the file
	first     string // where its first pod runs: burst at home, remote on b
	made      bool   // pods follow the data from now on
	ledger
}

const claimObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: NAME, labels: {rivulet.dev/offload: WHEN}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, namespace: NAME}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: NAME}
spec:
  strategy: {type: Recreate}
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "` + mainjob.Image + `", volumeMounts: [{name: data, mountPath: /data}]}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}]
`

// appendTo is appendNumbers, to the file $2.
const appendTo = `n=$1; echo >>/data/$2; while echo $n | busybox dd of=/data/$2 oflag=append conv=notrunc,fsync 2>/dev/null; do echo $n; n=$((n+1)); busybox usleep 50000; done`

// history is a seeded sequence of what happens to two devices in years.
type history struct {
	t       *testing.T
	ctx     context.Context
	a, b    *lab.Device
	rnd     *rand.Rand
	claims  []*claim // two in use, then those that were given up
	bad     string   // a release that is undone, as the devices see it
	backups int      // how many were made of a, on the host
	dir     string   // of the backups and the release
	old     int      // claims that were adopted
	more    int      // claims that took the place of others

	writing context.Context // of the pods
	done    sync.WaitGroup
}

// Whatever happens to two devices, no number that a pod has synced and told is gone: it is in a file of a volume on one of
// them. What happens are power cuts, ends of processes, backups that are put back, upgrades that are undone, datastores
// that are recovered from a snapshot, full disks, files of another time, and moves of the claims, one over the other.
func TestHistory(t *testing.T) {
	rounds, seed := 30, uint64(time.Now().UnixNano())
	if labtest.Long() {
		rounds = 300
	}
	for env, set := range map[string]func(uint64){roundsEnv: func(n uint64) { rounds = int(n) }, seedEnv: func(n uint64) { seed = n }} {
		if v := os.Getenv(env); v != "" {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				t.Fatalf("%s=%q is no number", env, v)
			}
			set(n)
		}
	}
	t.Logf("%s=%d repeats what happens, and in which order", seedEnv, seed)
	ctx, a, b := need(t, 4*time.Minute+time.Duration(rounds)*25*time.Second)
	if err := mainjob.ImportImage(ctx, devices); err != nil {
		t.Fatal(err)
	}
	noted(t, ctx, a)
	noted(t, ctx, b)
	dir, err := os.MkdirTemp("/var/tmp", "rivulet-power-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &history{t: t, ctx: ctx, a: a, b: b, rnd: rand.New(rand.NewPCG(seed, 0)), dir: dir}
	h.bad = releases.Faulty(t, h.dir, "v3-crash", "78", releases.Kubernetes(t, releases.Binary("v1/slim/rivulet")))
	labtest.CleanUp(t, func(ctx context.Context) {
		for _, c := range h.claims {
			labtest.On(t, ctx, a, "rivulet", "kubectl", "delete", "namespace", c.namespace, "--wait=false", "--ignore-not-found")
		}
	})
	var stop context.CancelFunc
	h.writing, stop = context.WithCancel(ctx)
	defer func() { stop(); h.done.Wait() }()
	h.add("here", "burst")
	h.add("there", "remote")
	h.settle()
	h.backup()
	for i := range rounds {
		name, step := h.choose()
		begun, told := time.Now(), h.told()
		step()
		h.started()
		if i%3 == 2 {
			h.settle()
			h.whole(fmt.Sprintf("after round %d, %s", i, name))
		}
		t.Logf("round %d: %s, %.1f s; %v told, %v before", i, name, time.Since(begun).Seconds(), h.told(), told)
		if t.Failed() {
			return
		}
	}
	h.settle()
	stop()
	h.done.Wait()
	h.whole("at the end")
	for _, c := range h.claims[:2] {
		if c.n == 0 {
			t.Errorf("%s: no number was told", c.namespace)
		}
	}
}

// add makes a claim, and has its pod write from now on.
func (h *history) add(name, first string) *claim {
	c := &claim{namespace: name, first: first}
	h.claims = append(h.claims, c)
	h.done.Go(func() {
		for h.writing.Err() == nil {
			h.append(h.writing, c)
			pause(h.writing, time.Second)
		}
	})
	return c
}

// choose returns the next step and its name.
func (h *history) choose() (string, func()) {
	steps := []struct {
		weight int
		name   string
		do     func()
	}{
		{3, "the power of one goes", func() { h.kill(h.one(), "power") }},
		{1, "the power of both goes", func() { h.kill(h.a, "power"); h.kill(h.b, "power") }},
		{2, "a process ends", func() { h.kill(h.one(), []string{"supervisor", "engine"}[h.rnd.IntN(2)]) }},
		{2, "a backup is made", h.backup},
		{3, "a backup is put back", h.restore},
		{2, "an upgrade is undone", h.undone},
		{2, "the datastore is damaged", h.damaged},
		{2, "a disk is full", h.full},
		{2, "files are of another time", h.otherTime},
		{4, "a claim is moved", h.move},
	}
	all := 0
	for _, s := range steps {
		all += s.weight
	}
	n := h.rnd.IntN(all)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			return s.name, s.do
		}
	}
	panic("unreachable")
}

func (h *history) one() *lab.Device { return []*lab.Device{h.a, h.b}[h.rnd.IntN(2)] }
func (h *history) coin() bool       { return h.rnd.IntN(2) == 0 }

// sometime waits up to d: the moment is the seed's choice.
func (h *history) sometime(d time.Duration) { pause(h.ctx, time.Duration(h.rnd.Int64N(int64(d)))) }

func (h *history) kill(d *lab.Device, what string) {
	h.t.Helper()
	h.sometime(4 * time.Second)
	if err := d.Kill(h.ctx, what); err != nil && what == "power" { // an engine may not be there at the moment
		h.t.Fatal(err)
	}
}

// started has rivulet running on both devices.
func (h *history) started() {
	h.t.Helper()
	for _, d := range devices {
		if _, err := d.Status(h.ctx); err == nil {
			continue
		}
		if err := d.Start(h.ctx); err != nil {
			h.t.Fatal(err)
		}
	}
}

// stopped has nothing of rivulet running on d, in order or not.
func (h *history) stopped(d *lab.Device) {
	h.t.Helper()
	if h.coin() {
		if err := d.Stop(h.ctx); err != nil {
			h.t.Fatal(err)
		}
		return
	}
	stopAll(h.t, h.ctx, d)
}

func (h *history) backup() {
	h.t.Helper()
	if err := h.a.WaitReady(h.ctx); err != nil {
		h.t.Fatal(err)
	}
	const file = "/root/cluster.backup"
	labtest.Must(h.t, h.ctx, h.a, "rivulet", "backup", "--force", file)
	raw, err := os.ReadFile(h.a.Path(file))
	if err == nil {
		err = os.WriteFile(filepath.Join(h.dir, fmt.Sprint(h.backups)), raw, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.backups++
}

// restore puts back any of the backups: from before claims were made, or were moved.
func (h *history) restore() {
	h.t.Helper()
	n := h.rnd.IntN(h.backups)
	h.stopped(h.a)
	labtest.Must(h.t, h.ctx, h.a, "rivulet", "restore", "--yes", "/host"+filepath.Join(h.dir, fmt.Sprint(n)))
	labtest.Must(h.t, h.ctx, h.a, "sh", "-c", "rm -rf /var/lib/rivulet/before-restore-*") // a person's word; the disk is small
	h.t.Logf("backup %d of %d is put back", n, h.backups)
}

// undone tries a release that ends by itself, at home, and now and then cuts the power meanwhile.
func (h *history) undone() {
	h.t.Helper()
	if err := h.a.WaitReady(h.ctx); err != nil {
		h.t.Fatal(err)
	}
	labtest.Must(h.t, h.ctx, h.a, "rivulet", "upgrade", "--window", "30s", "--every", "1s", h.bad)
	if h.coin() {
		h.kill(h.a, "power")
		h.started()
	}
	await.NoError(h.t, h.ctx, 2*time.Minute, "the upgrade is undone", func() error {
		out, err := h.a.Run(h.ctx, "rivulet", "upgrade", "-o", "json")
		if err == nil && !strings.Contains(strings.ReplaceAll(out, " ", ""), `"phase":"idle"`) {
			err = errors.New(out)
		}
		return err
	})
	labtest.Must(h.t, h.ctx, h.a, "sh", "-c", "rm -rf /var/lib/rivulet/before-rollback-*")
}

// damaged makes the engine go back to its last snapshot of the datastore.
func (h *history) damaged() {
	h.t.Helper()
	d := h.one()
	if err := d.WaitReady(h.ctx); err != nil {
		h.t.Fatal(err)
	}
	stopAll(h.t, h.ctx, d)
	labtest.Must(h.t, h.ctx, d, "sh", "-ec", strings.ReplaceAll(garbagePages, "DB", database))
	if err := d.Start(h.ctx); err != nil {
		h.t.Fatal(err)
	}
	if err := d.WaitReady(h.ctx); err != nil {
		h.t.Fatal(err)
	}
	labtest.Must(h.t, h.ctx, d, "sh", "-c", "rm -rf "+database+"*.damaged-*")
}

// full leaves nothing free on a disk while rivulet runs, or starts.
func (h *history) full() {
	h.t.Helper()
	const fill = "/var/lib/fill"
	d := h.one()
	labtest.Must(h.t, h.ctx, d, "sh", "-c", `n=$(df -B1 --output=avail /var/lib | tail -n 1); fallocate -l $n `+fill+` || head -c $n /dev/zero > `+fill+` || true`)
	h.sometime(8 * time.Second)
	if h.coin() {
		h.kill(d, "power")
		if err := d.Start(h.ctx); err != nil {
			h.t.Fatal(err)
		}
		h.sometime(8 * time.Second)
	}
	labtest.Must(h.t, h.ctx, d, "rm", "-f", fill)
}

// otherTime is what a clock that was wrong leaves on the disk: every file is of a time that is to come, or long past.
func (h *history) otherTime() {
	h.t.Helper()
	d := h.one()
	h.stopped(d)
	when := time.Now().AddDate([]int{-2, 2}[h.rnd.IntN(2)], 0, 0).Format("2006-01-02")
	labtest.Must(h.t, h.ctx, d, "sh", "-c", `find /var/lib/rivulet -xdev -path '*/containerd' -prune -o -type f -exec touch -c -d `+when+` {} +`)
}

// move moves one of the claims to the other device; now and then a device ends in the middle.
func (h *history) move() {
	h.t.Helper()
	c := h.claims[h.rnd.IntN(2)]
	to := []string{"home", "b"}[h.rnd.IntN(2)]
	cut := h.coin()
	cmd, err := h.a.Command(h.ctx, "rivulet", "move", "volume", c.namespace+"/"+c.namespace, to, "--evict")
	if err != nil {
		return
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &said, &said, time.Second
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	if cut {
		h.kill(h.one(), []string{"power", "supervisor"}[h.rnd.IntN(2)])
		h.started()
	}
	_ = cmd.Wait() // it is refused where the data are there already, or not reached
	h.t.Logf("moved to %s: %.200s", to, said.String())
}

// settle waits until both devices are ready and two pods write again. Data that home does not know get a claim again. A
// claim whose data are not where home's datastore has them, as that was put back, gets a successor.
func (h *history) settle() {
	h.t.Helper()
	peered(h.t, h.ctx)
	h.adopt()
	for i, c := range h.claims[:2] {
		h.apply(c)
		if err := h.write(c); err == nil {
			continue
		} else {
			h.t.Logf("%s: %v\n%s", c.namespace, err, labtest.On(h.t, h.ctx, h.a, "rivulet", "why", "deploy/"+c.namespace, "-n", c.namespace).Out)
		}
		h.more++
		next := h.add(fmt.Sprintf("%s-%d", strings.TrimRight(c.namespace, "-0123456789"), h.more), c.first)
		last := len(h.claims) - 1
		h.claims[i], h.claims[last] = next, c
		h.apply(next)
		if err := h.write(next); err != nil {
			h.t.Fatal(err)
		}
	}
}

// write waits until the claim's pod can write.
func (h *history) write(c *claim) error {
	ctx, cancel := context.WithTimeout(h.ctx, 90*time.Second)
	defer cancel()
	err := await.Until(ctx, func() error {
		_, err := h.a.Kubectl(ctx, "-n", c.namespace, "exec", "deploy/"+c.namespace, "--", "busybox", "sh", "-c", "echo >>/data/"+c.namespace)
		return err
	})
	if err == nil && !c.made {
		c.made = true
		h.apply(c)
	}
	return err
}

func (h *history) apply(c *claim) {
	h.t.Helper()
	when := c.first
	if c.made {
		when = "burst"
	}
	objects := strings.NewReplacer("NAME", c.namespace, "WHEN", when).Replace(claimObjects)
	await.NoError(h.t, h.ctx, time.Minute, c.namespace+" is applied", func() error {
		_, err := h.a.Run(h.ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", objects)
		return err
	})
}

// adopt gives a claim again to what is kept without one, beside those that there are.
func (h *history) adopt() {
	h.t.Helper()
	out := labtest.Must(h.t, h.ctx, h.a, "rivulet", "volumes", "-o", "json")
	var v volume.View
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		h.t.Fatal(err)
	}
	for _, k := range v.Kept {
		h.old++
		as := fmt.Sprintf("old-%d", h.old)
		labtest.Must(h.t, h.ctx, h.a, "rivulet", "volumes", "adopt", k.Ref, "--as", as)
		h.t.Logf("%s is adopted as %s", k.Ref, as)
	}
}

// append has the claim's pod write as long as it can, and reads what it tells.
func (h *history) append(ctx context.Context, c *claim) {
	cmd, err := h.a.Command(ctx, "rivulet", "kubectl", "-n", c.namespace, "exec", "deploy/"+c.namespace, "--", "busybox", "sh", "-c", appendTo, "append", strconv.Itoa(c.last()+1), c.namespace)
	if err != nil {
		return // the device is off
	}
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { out.Close() })() // what is killed may leave a child that has it open
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			c.mu.Lock()
			c.told, c.n = n, c.n+1
			c.mu.Unlock()
		}
	}
	_ = cmd.Wait() // it ends with the pod, or with a device
}

func (h *history) told() (all []int) {
	for _, c := range h.claims {
		all = append(all, c.last())
	}
	return all
}

// whole fails the test where a number is in no file of its claim on any disk.
func (h *history) whole(when string) {
	h.t.Helper()
	told := h.told() // before the files are read
	have := map[string]map[int]bool{}
	var files []string
	for _, d := range devices {
		err := filepath.WalkDir(d.Path("/var/lib/rivulet/storage"), func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // it ends meanwhile, and was copied before
				return nil
			}
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			} else if err != nil {
				return err
			}
			name := filepath.Base(path)
			if have[name] == nil {
				have[name] = map[int]bool{}
			}
			for line := range strings.Lines(string(raw)) {
				if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
					have[name][n] = true
				}
			}
			files = append(files, fmt.Sprintf("%s: %s, %d bytes", d.Name, path, len(raw)))
			return nil
		})
		if err != nil {
			h.t.Fatal(err)
		}
	}
	for i, c := range h.claims {
		var gone []int
		for n := 1; n <= told[i]; n++ {
			if !have[c.namespace][n] {
				gone = append(gone, n)
			}
		}
		if len(gone) > 0 {
			h.t.Errorf("%s: of %d numbers of %s that were synced and told %d are gone: %v\n%s", when, told[i], c.namespace, len(gone),
				gone[:min(len(gone), 20)], strings.Join(slices.Sorted(slices.Values(files)), "\n"))
		}
	}
}
