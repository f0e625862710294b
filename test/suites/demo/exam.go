package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"rivulet/appliance/engine"
	"rivulet/appliance/state/paths"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/tree"
)

const (
	examLimit = 25 * time.Minute
	examImage = "/opt/rivulet/exam-session.tar" // beside the binary
	examCPU   = 50                              // millicores that a session requests in examples/exam
	// sessionLabel is on all objects of a session in examples/exam; its value is the number of the session.
	sessionLabel = "session"
)

// examCourse is a course of examples/exam: a namespace, and the file of its sessions.
type examCourse struct {
	namespace, file string
	sessions        int
}

// exam is what both parts of the story have: the real one and the one on hollow nodes.
type exam struct {
	lab     *lab.Lab
	home    *place
	lenders []*place // neighbours, and the campus if there is one
	courses []examCourse
	roll    *roll
	tell    func(string, ...any)
}

// place is a cluster, as its administrator sees it.
type place struct {
	device *lab.Device
	api    kubernetes.Interface
	node   string // home's node for it
	// campus: it runs no Rivulet, and has all that home sends in one namespace.
	campus bool
}

// placeOf is a device that is up.
func placeOf(d *lab.Device, node string, campus bool) (*place, error) {
	cfg, err := engine.RESTConfig(paths.Kubeconfig(d.Path("/var/lib/rivulet")))
	if err != nil {
		return nil, err
	}
	cfg.Dial, cfg.QPS = d.Dial, -1
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	return &place{device: d, api: api, node: node, campus: campus}, nil
}

// examCourses are those of examples/exam, each with a part of its sessions.
func examCourses(part int) []examCourse {
	return []examCourse{{"exam-databases", "session-databases.yaml", 120 / part}, {"exam-networks", "session-networks.yaml", 80 / part}}
}

func examFile(name string) ([]byte, error) {
	raw, err := os.ReadFile(tree.Path("examples", "exam", name))
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	return raw, nil
}

// open applies examples/exam/courses.yaml, with the quota of each course as large as the course is here.
func (e *exam) open(ctx context.Context) error {
	raw, err := examFile("courses.yaml")
	if err != nil {
		return err
	}
	for doc := range strings.SplitSeq(string(raw), "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			return fmt.Errorf("demo: courses.yaml: %w", err)
		}
		if kind.Kind == "Namespace" {
			var ns corev1.Namespace
			if err = yaml.UnmarshalStrict([]byte(doc), &ns); err == nil {
				_, err = e.home.api.CoreV1().Namespaces().Create(ctx, &ns, metav1.CreateOptions{})
			}
		} else {
			var quota corev1.ResourceQuota
			if err = yaml.UnmarshalStrict([]byte(doc), &quota); err == nil {
				at := slices.IndexFunc(e.courses, func(c examCourse) bool { return c.namespace == quota.Namespace })
				for name := range quota.Spec.Hard {
					quota.Spec.Hard[name] = *resource.NewQuantity(int64(e.courses[at].sessions), resource.DecimalSI)
				}
				_, err = e.home.api.CoreV1().ResourceQuotas(quota.Namespace).Create(ctx, &quota, metav1.CreateOptions{})
			}
		}
		if err != nil {
			return fmt.Errorf("demo: courses.yaml: %w", err)
		}
	}
	return e.quotasCounted(ctx)
}

// quotasCounted waits until the quotas are in force: one that was never counted admits nothing.
func (e *exam) quotasCounted(ctx context.Context) error {
	return await.Until(ctx, func() error {
		for _, c := range e.courses {
			q, err := e.home.api.CoreV1().ResourceQuotas(c.namespace).Get(ctx, "sessions", metav1.GetOptions{})
			if err == nil && len(q.Status.Hard) == 0 {
				err = fmt.Errorf("demo: the quota of %s is not counted", c.namespace)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// session creates the objects of a session, as kubectl apply of the course's file does.
func (e *exam) session(ctx context.Context, c examCourse, number int) error {
	raw, err := examFile(c.file)
	if err != nil {
		return err
	}
	for doc := range strings.SplitSeq(strings.ReplaceAll(string(raw), "NUMBER", fmt.Sprint(number)), "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			return fmt.Errorf("demo: %s: %w", c.file, err)
		}
		switch kind.Kind {
		case "PersistentVolumeClaim":
			var o corev1.PersistentVolumeClaim
			if err = yaml.UnmarshalStrict([]byte(doc), &o); err == nil {
				_, err = e.home.api.CoreV1().PersistentVolumeClaims(c.namespace).Create(ctx, &o, metav1.CreateOptions{})
			}
		case "Service":
			var o corev1.Service
			if err = yaml.UnmarshalStrict([]byte(doc), &o); err == nil {
				_, err = e.home.api.CoreV1().Services(c.namespace).Create(ctx, &o, metav1.CreateOptions{})
			}
		case "Job":
			var o batchv1.Job
			if err = yaml.UnmarshalStrict([]byte(doc), &o); err == nil {
				e.roll.created(c.namespace, number)
				_, err = e.home.api.BatchV1().Jobs(c.namespace).Create(ctx, &o, metav1.CreateOptions{})
			}
		default:
			err = fmt.Errorf("kind %q", kind.Kind)
		}
		if err != nil {
			return fmt.Errorf("demo: %s, session %d: %w", c.file, number, err)
		}
	}
	return nil
}

// arrive creates all sessions, evenly within a time, of the courses by turns.
func (e *exam) arrive(ctx context.Context, within time.Duration) error {
	type one struct {
		examCourse
		number int
		at     float64 // 0 to 1
	}
	var all []one
	for _, c := range e.courses {
		for i := range c.sessions {
			all = append(all, one{c, i + 1, float64(i) / float64(c.sessions)})
		}
	}
	slices.SortStableFunc(all, func(a, b one) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	pace := time.NewTicker(within / time.Duration(len(all)))
	defer pace.Stop()
	var work errgroup.Group
	for _, s := range all {
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), work.Wait())
		case <-pace.C:
			work.Go(func() error { return e.session(ctx, s.examCourse, s.number) })
		}
	}
	return work.Wait()
}

// total is the number of all sessions.
func (e *exam) total() (n int) {
	for _, c := range e.courses {
		n += c.sessions
	}
	return n
}

// refused has one session more than the quota of each course allows, with the command of the example.
func (e *exam) refused(ctx context.Context) error {
	for _, c := range e.courses {
		raw, err := examFile(c.file)
		if err != nil {
			return err
		}
		number := fmt.Sprint(c.sessions + 1)
		text, err := e.home.device.Run(ctx, "sh", "-c", `printf %s "$1" | sed "s/NUMBER/$2/g" | rivulet kubectl apply -f - 2>&1 && exit 1; exit 0`, "apply", string(raw), number)
		if err != nil || !strings.Contains(text, fmt.Sprintf("exceeded quota: sessions, requested: count/jobs.batch=1, used: count/jobs.batch=%[1]d, limited: count/jobs.batch=%[1]d", c.sessions)) {
			return errors.Join(fmt.Errorf("demo: a session more than the quota of %s allows: %s", c.namespace, text), err)
		}
		left, err := e.home.api.BatchV1().Jobs(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: sessionLabel + "=" + number})
		if err != nil || len(left.Items) > 0 {
			return errors.Join(fmt.Errorf("demo: %s has %d Jobs over its quota", c.namespace, len(left.Items)), err)
		}
		e.tell("session %s of %s is refused:", number, c.namespace)
		fmt.Printf("\na$ sed s/NUMBER/%s/g %s | kubectl apply -f -\n%s\n\n", number, c.file, text)
	}
	return nil
}

// where counts sessions by node.
func (e *exam) where() map[string]int {
	n := map[string]int{}
	for _, s := range e.roll.all() {
		n[s.node]++
	}
	return n
}

// restart ends the supervisor of a place without warning, or in order, and waits until it is back.
func restart(ctx context.Context, p *place, orderly bool) (time.Duration, error) {
	begun := time.Now()
	end := func() error { return p.device.Kill(ctx, "supervisor") }
	if orderly {
		end = func() error { return p.device.Stop(ctx) }
	}
	if err := errors.Join(end(), p.device.Start(ctx)); err != nil {
		return 0, err
	}
	err := p.device.WaitReady(ctx)
	return time.Since(begun), err
}
