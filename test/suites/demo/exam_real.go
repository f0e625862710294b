package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
)

const (
	examCampusAddress = "10.77.0.14" // of device d
	examPart          = 10           // of the sessions of examples/exam run on real devices
	examHome          = 4            // sessions that home has room for
	examNeighbour     = 6            // and each neighbour
	examBell          = 15 * time.Second
)

// leaves is what RIVULET_RESERVE_CPU is for a device that has room for so many sessions.
func leaves(sessions int) []string {
	return []string{fmt.Sprintf("RIVULET_RESERVE_CPU=%dm", runtime.NumCPU()*1000-sessions*examCPU-examCPU/2)}
}

// examLab is home, two neighbours and a device that becomes a campus. They boot without their cables, as in burstLab.
func examLab() lab.Options {
	return lab.Options{Devices: 4, Unplugged: true, Env: map[string][]string{"a": leaves(examHome), "b": leaves(examNeighbour), "c": leaves(examNeighbour)}}
}

// makeExam makes that lab, which stays, and plays a tenth of the exam on it.
func makeExam(ctx context.Context, dir, binary string, tell func(string, ...any)) error {
	o := examLab()
	o.Dir, o.Binary, o.Tell = dir, binary, tell
	l, err := lab.Up(ctx, o)
	if err != nil {
		return err
	}
	return playExam(ctx, l, tell)
}

// playExam plays the exam with a tenth of its sessions, each a real pod with a student at its WebSocket.
func playExam(ctx context.Context, l *lab.Lab, tell func(string, ...any)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e, err := setExam(ctx, l, examPart, "cpu=1,memory=512Mi,pods=9", tell)
	if err != nil {
		return err
	}
	before, err := e.room(ctx)
	if err != nil {
		return err
	}
	tell("home has room for %d sessions; it may use %v", examHome, before)
	tell("a$ kubectl apply -f examples/exam/courses.yaml, with quotas of %d and %d sessions", e.courses[0].sessions, e.courses[1].sessions)
	if err := e.open(ctx); err != nil {
		return err
	}
	tell("the exam begins: %d sessions arrive within %d seconds", e.total(), e.total())
	if err := e.arrive(ctx, time.Duration(e.total())*time.Second); err != nil {
		return err
	}
	if err := e.roll.waitRunning(ctx, e.total()); err != nil {
		return err
	}
	tell("all sessions run: %s; from creation to Running %s", counted(e.where()), spread(e.roll.took(everySession)))
	if err := e.placed(); err != nil {
		return err
	}
	students, err := e.sit(ctx)
	defer students.close()
	if err != nil {
		return err
	}
	if err := students.goOn(ctx); err != nil {
		return err
	}
	tell("%d students have a WebSocket each, from home's network to the Service of their session, and send an answer every %v", len(students), answerEvery)
	if err := e.refused(ctx); err != nil {
		return err
	}
	if err := e.disturb(ctx, students); err != nil {
		return err
	}
	return e.finish(ctx, students, before)
}

func everySession(attendance) bool { return true }

// setExam makes of four devices home, two neighbours and a campus, with limits for what home sends there.
func setExam(ctx context.Context, l *lab.Lab, part int, limits string, tell func(string, ...any)) (*exam, error) {
	devices, err := l.Devices()
	if err != nil {
		return nil, err
	}
	tell("waiting for k3s on each device")
	for _, d := range devices {
		if err := d.WaitReady(ctx); err != nil {
			return nil, err
		}
	}
	if err := importForExam(ctx, devices); err != nil {
		return nil, err
	}
	tell("d becomes the campus: the pinned k3s, started bare, without Rivulet; one namespace of it is open to a")
	c, err := campus.Become(ctx, devices[3], examCampusAddress)
	if err != nil {
		return nil, err
	}
	if err := l.Heal(); err != nil {
		return nil, err
	}
	if err := devices[0].WaitPeers(ctx, "b", "c"); err != nil {
		return nil, err
	}
	s := &mainjob.Story{Home: devices[0], Tell: tell}
	if _, err := c.Join(ctx, devices[0], "--limits", limits, "--network", "auto", "--image", "shell="+mainjob.Image); err != nil {
		return nil, err
	}
	if err := await.Until(ctx, func() error { return nodeReady(ctx, s, campusNode) }); err != nil {
		return nil, err
	}
	e := &exam{lab: l, courses: examCourses(part), tell: tell}
	if e.home, err = placeOf(devices[0], "a", false); err != nil {
		return nil, err
	}
	for i, node := range []string{"b", "c", campusNode} {
		p, err := placeOf(devices[i+1], node, node == campusNode)
		if err != nil {
			return nil, err
		}
		e.lenders = append(e.lenders, p)
	}
	e.roll = newRoll(ctx, e.home.api)
	return e, nil
}

// importForExam puts the images of the session and of the campus's gateway into every device.
func importForExam(ctx context.Context, devices []*lab.Device) error {
	if err := mainjob.ImportImage(ctx, devices); err != nil {
		return err
	}
	for _, d := range devices {
		if _, err := d.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", examImage); err != nil {
			return err
		}
	}
	return nil
}

// placed checks that home is full, and that neighbours and campus have the rest: volumes are on home and neighbours.
func (e *exam) placed() error {
	n := map[string]int{}
	for _, s := range e.roll.all() {
		n[s.node]++
		if s.namespace == e.courses[0].namespace && s.node == campusNode || s.namespace == e.courses[1].namespace && (s.node == "b" || s.node == "c") {
			return fmt.Errorf("demo: session %s of %s is on %s", s.number, s.namespace, s.node)
		}
	}
	if n["a"] != examHome || n["b"] == 0 || n["c"] == 0 || n[campusNode] == 0 {
		return fmt.Errorf("demo: the sessions are on %v, want %d on a and some on each of the others", n, examHome)
	}
	return nil
}

// disturb restarts supervisors and cuts a cable, and no student notices more than a pause.
func (e *exam) disturb(ctx context.Context, students classroom) error {
	b, c := e.lenders[0], e.lenders[1]
	for _, one := range []struct {
		what string
		do   func() (time.Duration, error)
	}{
		{"home's supervisor is killed and started again", func() (time.Duration, error) { return restart(ctx, e.home, false) }},
		{"home's supervisor is restarted in order", func() (time.Duration, error) { return restart(ctx, e.home, true) }},
		{"the supervisor of the neighbour b is killed and started again", func() (time.Duration, error) { return restart(ctx, b, false) }},
		{"the supervisor of the neighbour b is restarted in order", func() (time.Duration, error) { return restart(ctx, b, true) }},
		{"the cable of the neighbour c is out for 10 s", func() (time.Duration, error) { return e.unplugged(ctx, c, 10*time.Second) }},
	} {
		students.fromNow()
		took, err := one.do()
		if err != nil {
			return err
		}
		if err := errors.Join(e.home.device.WaitPeers(ctx, "b", "c"), students.goOn(ctx), e.roll.intact()); err != nil {
			return fmt.Errorf("demo: %s: %w", one.what, err)
		}
		e.tell("%s, back after %.1f s: all %d go on with the same WebSocket, pod and node; slowest answer %s", one.what, took.Seconds(), len(students), students.slowest())
	}
	return nil
}

// unplugged takes the cable of a place out for some time.
func (e *exam) unplugged(ctx context.Context, p *place, long time.Duration) (time.Duration, error) {
	begun := time.Now()
	if err := e.lab.Cut(p.device.Name, ""); err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(long):
	}
	if err := e.lab.Heal(); err != nil {
		return 0, err
	}
	err := e.home.device.WaitPeers(ctx, "b", "c")
	return time.Since(begun), err
}

// finish has the deadline end all sessions, reads the answers of one that ran away, and gives everything back.
func (e *exam) finish(ctx context.Context, students classroom, before map[string]string) error {
	if err := errors.Join(students.uncut(), e.roll.intact()); err != nil {
		return err
	}
	e.roll.end()
	end, err := e.deadline(ctx, examBell)
	if err != nil {
		return err
	}
	e.tell("the exam ends in %v: kubectl patch job, activeDeadlineSeconds", examBell)
	if err := e.ended(ctx, end); err != nil {
		return err
	}
	const early = 2 * time.Second // a Job's start has whole seconds
	if err := await.Until(ctx, func() error {
		for _, x := range students {
			switch _, ended, err := x.state(); {
			case err == nil:
				return fmt.Errorf("demo: session %s of %s has ended, and its WebSocket has not", x.number, x.namespace)
			case ended.Before(end.Add(-early)):
				return fmt.Errorf("demo: %.1f s before the deadline: %w", end.Sub(ended).Seconds(), err)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := e.collect(ctx, students); err != nil {
		return err
	}
	if err := e.report(students); err != nil {
		return err
	}
	took, err := e.close(ctx, before)
	if err != nil {
		return err
	}
	e.tell("a$ kubectl delete -f examples/exam/courses.yaml: no namespace, pod, Job, claim or volume is left on any of the four clusters (last seen: %s), and home may use what it might before: %v", took, before)
	return nil
}

// collect moves the volume of a session that ran on a neighbour home, and reads the answers there.
func (e *exam) collect(ctx context.Context, students classroom) error {
	for _, x := range students {
		if x.namespace != e.courses[0].namespace || x.node == "a" {
			continue
		}
		claim := x.namespace + "/session-" + x.number
		begun := time.Now()
		if _, err := e.home.device.Run(ctx, "rivulet", "move", "volume", claim, "home"); err != nil {
			return err
		}
		took := time.Since(begun)
		raw, err := e.answersAtHome(ctx, x)
		if err != nil {
			return err
		}
		kept, _, _ := x.state()
		// One more may have been kept, and its confirmation lost with the session.
		if n := strings.Count(string(raw), "\n"); n != kept && n != kept+1 {
			return fmt.Errorf("demo: the volume of %s has %d answers, of %d that were confirmed", claim, n, kept)
		}
		e.tell("a$ rivulet move volume %s home: in %.1f s from %s; it has all %d answers", claim, took.Seconds(), x.node, kept)
		return nil
	}
	return errors.New("demo: no session with a volume ran away")
}

// answersAtHome reads the file of answers in a session's volume, which is a folder of home.
func (e *exam) answersAtHome(ctx context.Context, x *examStudent) ([]byte, error) {
	claim, err := e.home.api.CoreV1().PersistentVolumeClaims(x.namespace).Get(ctx, "session-"+x.number, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	v, err := e.home.api.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	raw, err := os.ReadFile(e.home.device.Path(filepath.Join(v.Spec.Local.Path, "answers")))
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	return raw, nil
}

// report prints each session.
func (e *exam) report(students classroom) error {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SESSION\tNODE\tCREATED → RUNNING\tANSWERS KEPT")
	for _, x := range students {
		answers, _, _ := x.state()
		fmt.Fprintf(w, "%s/%s\t%s\t%.1f s\t%d\n", x.namespace, x.number, x.node, x.running.Sub(x.asked).Seconds(), answers)
	}
	fmt.Fprintln(w)
	return w.Flush()
}

const afterExam = `Look around:
    bin/rivulet-lab exec a -- rivulet status
    bin/rivulet-lab kubectl a -- get nodes
    examples/exam/README.md                          the same on your own devices
Stop:
    make demo-exam-down
`
