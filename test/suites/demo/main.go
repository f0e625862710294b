// Command demo plays the main job on the lab that is up and prints what happens:
// who runs what where, and the proof that it works. With -burst it makes a lab of its
// own, in which one device is a campus that runs no Rivulet; with -course one in which
// students have clusters; with -shelf one with a cluster of three devices; with -exam one for
// the sessions of an exam; with -pilot one with a shop on three clusters. It is never shipped.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
)

func main() {
	dir := flag.String("dir", lab.DefaultDir, "the lab's folder")
	burst := flag.Bool("burst", false, "home, a peer and a campus, in a lab that this makes")
	course := flag.Bool("course", false, "a course of students on three devices, in a lab that this makes")
	shelf := flag.Bool("shelf", false, "a cluster of three devices and its peer, in a lab that this makes")
	exams := flag.String("exam", "", "real: a tenth of the sessions of an exam on real devices, numbers: all of them on hollow nodes, each in a lab that this makes")
	withPilot := flag.Bool("pilot", false, "a shop on three clusters, and what goes wrong there, in a lab that this makes")
	students := flag.Int("students", 30, "with -course: how many")
	binary := flag.String("binary", lab.Beside(), "with -burst, -course, -shelf, -exam and -pilot: the rivulet to run")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	limit := 8 * time.Minute
	switch {
	case *course:
		limit = courseLimit
	case *withPilot:
		limit = pilotLimit
	}
	if *exams != "" {
		limit = examLimit
		klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // an engine that is restarted ends watches, which begin again
	}
	ctx, cancel = context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	tell := func(format string, args ...any) {
		fmt.Printf("%5.1f s  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}
	play, after := func() error { return run(ctx, *dir, tell) }, ""
	switch {
	case *burst:
		play, after = func() error { return makeBurst(ctx, *dir, *binary, tell) }, afterBurst
	case *course:
		play, after = func() error { return makeCourse(ctx, *dir, *binary, courseDevices, *students, tell) }, afterCourse
	case *shelf:
		play, after = func() error { return makeShelf(ctx, *dir, *binary, tell) }, afterShelf
	case *exams == "real":
		play, after = func() error { return makeExam(ctx, *dir, *binary, tell) }, afterExam
	case *exams == "numbers":
		play = func() error { return makeExamNumbers(ctx, *dir, *binary, tell) }
	case *exams != "":
		play = func() error { return fmt.Errorf("-exam is real or numbers, not %q", *exams) }
	case *withPilot:
		play, after = func() error { return makePilot(ctx, *dir, *binary, pilotLasting, pilotTarget, tell) }, afterPilot
	}
	if err := play(); err != nil {
		fmt.Fprintln(os.Stderr, "demo: "+err.Error())
		fmt.Fprintln(os.Stderr, "Look around with: bin/rivulet-lab status; bin/rivulet-lab logs a. End it with: make demo-down")
		os.Exit(1)
	}
	fmt.Print(after)
}

func run(ctx context.Context, dir string, tell func(format string, args ...any)) error {
	l, err := lab.Open(dir)
	if err != nil {
		return err
	}
	home, err := l.Device("a")
	if err != nil {
		return err
	}
	devices, err := l.Devices()
	if err != nil {
		return err
	}
	tell("the image goes into every device, as there is no registry here")
	if err := mainjob.ImportImage(ctx, devices); err != nil {
		return err
	}
	s := &mainjob.Story{Home: home, Tell: tell}
	if err := s.Deploy(ctx); err != nil {
		return err
	}
	pods, err := s.WaitReady(ctx, mainjob.Replicas)
	if err != nil {
		return err
	}
	fmt.Print("\nThe virtual nodes of a, and where the replicas run (kubectl get pods -o wide on a):\n\n")
	nodes, err := s.Kubectl(ctx, "get", "nodes", "-L", "kubernetes.io/arch")
	if err != nil {
		return err
	}
	fmt.Println(nodes)
	return prove(ctx, s, pods)
}

// prove asks the application from home and from away and prints who answered.
func prove(ctx context.Context, s *mainjob.Story, pods []corev1.Pod) error {
	homePod, awayPod, err := mainjob.Ends(pods)
	if err != nil {
		return err
	}
	fromAway, err := s.AskAll(ctx, awayPod.Name, mainjob.App, pods)
	if err != nil {
		return err
	}
	fromHome, err := s.AskAll(ctx, homePod.Name, mainjob.App, pods)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "POD\tNODE\tADDRESS\tANSWERED %s (home)\tANSWERED %s (on %s)\n", homePod.Name, awayPod.Name, awayPod.Spec.NodeName)
	for _, p := range pods {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\n", p.Name, p.Spec.NodeName, p.Status.PodIP, fromHome[p.Name], fromAway[p.Name])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	log, err := s.Kubectl(ctx, "logs", "-n", mainjob.Namespace, awayPod.Name, "--tail", "1")
	if err != nil {
		return err
	}
	who, err := s.Kubectl(ctx, "exec", "-n", mainjob.Namespace, awayPod.Name, "--", "sh", "-c", "hostname; id -u; ip -4 -o addr show eth0")
	if err != nil {
		return err
	}
	fmt.Printf("\nA log line of %s, which runs on %s:\n    %s", awayPod.Name, awayPod.Spec.NodeName, log)
	fmt.Printf("and an exec in it (host name, user, the address it has there):\n    %s\n", strings.Join(strings.Fields(who), " "))
	where := mainjob.Where(pods)
	var parts []string
	for node, n := range where {
		parts = append(parts, fmt.Sprintf("%d on %s", n, node))
	}
	slices.Sort(parts)
	fmt.Printf("\n%d replicas: %s. Every one of them answered, asked by the name %q from home and from away.\n\n", len(pods), strings.Join(parts, ", "), mainjob.App)
	fmt.Print(`Look around:
    bin/rivulet-lab status
    bin/rivulet-lab exec a -- rivulet status
    bin/rivulet-lab kubectl a -- get pods -n lab -o wide
    bin/rivulet-lab kubectl b -- get pods -A          what b sees of it
    bin/rivulet-lab cut a b; bin/rivulet-lab heal     be the network
    bin/rivulet-lab kill a engine                     be the bad luck
Stop:
    make demo-down
`)
	return nil
}
