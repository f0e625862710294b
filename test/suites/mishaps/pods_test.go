package mishaps

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// deployment is one of the demo's image; spec, pod and container are put into the parts that they name, as
// lines of YAML in braces' form.
func deployment(name, spec, pod, container string) string {
	fields := func(list ...string) (out string) {
		for _, f := range list {
			if f != "" {
				out += f + ", "
			}
		}
		return out
	}
	if !strings.Contains(container, "image: ") {
		container = fields(container) + "image: " + mainjob.Image
	}
	return fmt.Sprintf("---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s, namespace: NAMESPACE}, spec: {%[2]sselector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}, spec: {%[3]sterminationGracePeriodSeconds: 1, containers: [{name: web, %[4]s}]}}}}\n",
		name, fields(spec), fields(pod), container)
}

// job is one of the same kind.
func job(spec, container string) string {
	return fmt.Sprintf("---\n{apiVersion: batch/v1, kind: Job, metadata: {name: sum, namespace: NAMESPACE}, spec: {%stemplate: {spec: {restartPolicy: Never, containers: [{name: sum, image: %s, %s}]}}}}\n", spec, mainjob.Image, container)
}

const (
	sleeps = `command: ["sh", "-c", "sleep 1d"]`
	// onPeer sends a pod to b once its namespace is offloaded.
	onPeer = `nodeSelector: {kubernetes.io/hostname: b}`
)

// claim is one of the class that is the default.
const claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: NAMESPACE}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}"

func cpu(much string) string { return "resources: {requests: {cpu: " + much + "}}" }

func on(d string, args ...string) step {
	return func(t *testing.T, ctx context.Context, ns string) {
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "NAMESPACE", ns)
		}
		labtest.Must(t, ctx, suite.Devices[d], args...)
	}
}

// offloaded sends the namespace's pods away if need be.
func offloaded() step { return on("a", "rivulet", "offload", "NAMESPACE") }

func shell(d, line string) step { return on(d, "sh", "-c", line) }

// made applies objects.
func made(objects string) step {
	return func(t *testing.T, ctx context.Context, ns string) {
		apply(t, ctx, strings.ReplaceAll(objects, "NAMESPACE", ns))
	}
}

// other has the demo's image under another name as a file on a, and nowhere else.
func other(name string) step {
	return shell("a", "rivulet ctr images tag "+mainjob.Image+" "+name+" && rivulet ctr images export /root/other.tar "+name+" && rivulet ctr images rm "+name)
}

func becomes(want string, args ...string) func(t *testing.T, ctx context.Context, ns string) error {
	return func(t *testing.T, ctx context.Context, ns string) error {
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "NAMESPACE", ns)
		}
		if got := labtest.On(t, ctx, a, args...).Out; !strings.Contains(got, want) {
			return fmt.Errorf("%v: %q, want %q", args, got, want)
		}
		return nil
	}
}

var ofPods = []mishap{
	{
		name:    "no room at home",
		objects: deployment("web", "", "", sleeps+", "+cpu("300m")),
		harm:    both(running, made(deployment("more", "", "", sleeps+", "+cpu("300m")))),
		why:     "deploy/more",
		shows:   map[string]string{"pods": "waiting…NAMESPACE", "why": "home has no room for 300m cpu, and b has, but its namespace may not go there"},
	}, {
		name:    "the peer is cordoned",
		before:  both(offloaded(), on("a", "rivulet", "cordon", "b")),
		objects: deployment("web", "", onPeer, sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "waiting…NAMESPACE", "why": "b takes no new pods (cordoned)"},
		after:   on("a", "rivulet", "uncordon", "b"),
	}, {
		name:    "home is cordoned",
		before:  on("a", "rivulet", "kubectl", "cordon", "a"),
		objects: deployment("web", "", "", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "waiting…NAMESPACE", "why": "a takes no new pods (cordoned)"},
		after:   on("a", "rivulet", "kubectl", "uncordon", "a"),
	}, {
		name:    "home is cordoned, as the device shows it",
		before:  on("a", "rivulet", "kubectl", "cordon", "a"),
		objects: deployment("web", "", "", sleeps),
		shows:   map[string]string{"status": "pods-waiting…a takes no new pods (cordoned)", "doctor": "a takes no new pods (cordoned)"},
		from:    "doctor",
		after:   on("a", "rivulet", "kubectl", "uncordon", "a"),
	}, {
		name:    "a taint that somebody forgot",
		before:  on("a", "rivulet", "kubectl", "taint", "node", "a", "maintenance=yes:NoSchedule"),
		objects: deployment("web", "", "", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"why": "a has taint maintenance=yes:NoSchedule"},
		after:   shell("a", "rivulet kubectl taint node a maintenance- || true"),
	}, {
		name:    "no image at home",
		before:  other("rivulet.dev/late-home:1"),
		objects: deployment("web", "", "", sleeps+", image: rivulet.dev/late-home:1"),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "ErrImage", "why": "image rivulet.dev/late-home:1 is not on a"},
		fills:   map[string]string{"FILE.tar": "/root/other.tar"},
	}, {
		name:    "no image on the peer",
		before:  both(offloaded(), other("rivulet.dev/late-peer:1")),
		objects: deployment("web", "", onPeer, sleeps+", image: rivulet.dev/late-peer:1"),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "ErrImage", "why": "image rivulet.dev/late-peer:1 is not on b"},
		fills:   map[string]string{"FILE.tar": "/root/other.tar"},
	}, {
		name:    "a ConfigMap that nobody made",
		objects: deployment("web", "", "", sleeps+", envFrom: [{configMapRef: {name: settings}}]"),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "CreateContainerConfigError", "why": "settings"},
		hands:   map[string]step{"make what it names": on("a", "rivulet", "kubectl", "create", "configmap", "settings", "-n", "NAMESPACE", "--from-literal=colour=blue")},
	}, {
		name:    "a key that a Secret lacks",
		objects: "---\n{apiVersion: v1, kind: Secret, metadata: {name: login, namespace: NAMESPACE}, stringData: {user: anna}}\n" + deployment("web", "", "", sleeps+", env: [{name: P, valueFrom: {secretKeyRef: {name: login, key: password}}}]"),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "CreateContainerConfigError", "why": "password"},
		hands:   map[string]step{"make what it names": made("{apiVersion: v1, kind: Secret, metadata: {name: login, namespace: NAMESPACE}, stringData: {user: anna, password: x}}")},
	}, {
		name:    "a claim that nobody made",
		objects: deployment("web", "", "volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "waiting…NAMESPACE", "why": "claim data"},
		before:  shell("a", `echo '`+claim+`' > /root/claim.yaml`),
		fills:   map[string]string{"FILE.yaml": "/root/claim.yaml"},
	}, {
		name: "a claim of a class that is not there",
		objects: "---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: NAMESPACE}, spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}\n" +
			deployment("web", "", "volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]", sleeps),
		why:   "pvc/data",
		shows: map[string]string{"pods": "waiting…NAMESPACE", "why": "fast"},
		hands: map[string]step{"local-path": both(on("a", "rivulet", "kubectl", "delete", "pvc", "data", "-n", "NAMESPACE"),
			made(claim))},
	}, {
		name:    "a label that no node has",
		objects: deployment("web", "", "nodeSelector: {disk: ssd}", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "waiting…NAMESPACE", "why": "a has no label disk, and its nodeSelector asks for disk=ssd"},
		after:   on("a", "rivulet", "kubectl", "label", "node", "a", "disk-"),
	}, {
		name:    "a program that ends by itself",
		objects: deployment("web", "", "", `command: ["sh", "-c", "test -n \"$DATABASE\" || { echo DATABASE is not set; exit 3; }; sleep 1d"], readinessProbe: {exec: {command: ["sh", "-c", "test -n \"$DATABASE\""]}}`),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "CrashLoopBackOff", "why": "container web ended…3 (Error)"},
		hands: map[string]step{"rivulet kubectl logs": both(on("a", "sh", "-c", "rivulet kubectl logs -n NAMESPACE deploy/web | grep 'DATABASE is not set'"),
			on("a", "rivulet", "kubectl", "set", "env", "-n", "NAMESPACE", "deploy/web", "DATABASE=here"))},
	}, {
		name:    "too little memory",
		objects: deployment("web", "", "", `command: ["sh", "-c", "busybox dd if=/dev/zero of=/dev/null bs=48M count=1 && sleep 1d"], resources: {limits: {memory: 16Mi}}`),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "web", "why": "OOMKilled"},
		hands:   map[string]step{"raise its memory limit": on("a", "rivulet", "kubectl", "set", "resources", "-n", "NAMESPACE", "deploy/web", "--limits=memory=512Mi")},
	}, {
		name:    "a quota that is used up",
		objects: "---\n{apiVersion: v1, kind: ResourceQuota, metadata: {name: small, namespace: NAMESPACE}, spec: {hard: {pods: 1}}}\n" + deployment("web", "replicas: 2", "", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"why": "exceeded quota: small"},
		over:    becomes("2", "rivulet", "kubectl", "get", "deploy", "web", "-n", "NAMESPACE", "-o", "jsonpath={.status.readyReplicas}"),
	}, {
		name:    "a ServiceAccount that nobody made",
		objects: deployment("web", "", "serviceAccountName: robot", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"why": "robot"},
	}, {
		name:    "a Deployment of no replicas",
		objects: deployment("web", "replicas: 0", "", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"why": "it has 0 replicas"},
	}, {
		name:    "a rollout that is paused",
		objects: deployment("web", "paused: true", "", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"why": "it is paused"},
	}, {
		name:    "a Job that is suspended",
		objects: job("suspend: true, ", `command: ["sh", "-c", "true"]`),
		why:     "job/sum",
		shows:   map[string]string{"why": "it is suspended"},
	}, {
		name:    "a CronJob that is suspended",
		objects: "---\n{apiVersion: batch/v1, kind: CronJob, metadata: {name: sums, namespace: NAMESPACE}, spec: {schedule: '0 3 * * *', suspend: true, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: sum, image: " + mainjob.Image + "}]}}}}}}\n",
		why:     "cronjob/sums",
		shows:   map[string]string{"why": "it is suspended"},
		over:    becomes("false", "rivulet", "kubectl", "get", "cronjob", "sums", "-n", "NAMESPACE", "-o", "jsonpath={.spec.suspend}"),
	}, {
		name: "a Service whose selector is mistyped",
		objects: deployment("web", "", "", "ports: [{containerPort: 8080}]") +
			"---\n{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NAMESPACE}, spec: {selector: {app: wbe}, ports: [{port: 80, targetPort: 8080}]}}\n",
		why:   "svc/web",
		shows: map[string]string{"why": "app=wbe"},
		over:  becomes("10.42.", "rivulet", "kubectl", "get", "endpointslices", "-n", "NAMESPACE", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[*].addresses}"),
	}, {
		name: "a target port that no pod has",
		objects: deployment("web", "", "", "ports: [{name: http, containerPort: 8080}]") +
			"---\n{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NAMESPACE}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: htpt}]}}\n",
		harm:  running,
		why:   "svc/web",
		shows: map[string]string{"why": "no pod of it declares port htpt"},
		over: func(t *testing.T, ctx context.Context, ns string) error {
			ip := labtest.Kubectl(t, ctx, a, "get", "svc", "web", "-n", ns, "-o", "jsonpath={.spec.clusterIP}")
			conn, err := a.Dial(ctx, "tcp", ip+":80")
			if err == nil {
				err = conn.Close()
			}
			return err
		},
	}, {
		name: "a port of a Service that another has",
		objects: deployment("web", "", "", "ports: [{containerPort: 8080}]") +
			"---\n{apiVersion: v1, kind: Service, metadata: {name: first, namespace: NAMESPACE}, spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 9090, targetPort: 8080}]}}\n",
		harm: both(comes("10.77.", "rivulet", "kubectl", "get", "svc", "first", "-n", "NAMESPACE", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"),
			made("{apiVersion: v1, kind: Service, metadata: {name: second, namespace: NAMESPACE}, spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 9090, targetPort: 8080}]}}")),
		why:   "svc/second",
		shows: map[string]string{"status": "service-pending", "why": "9090", "doctor": "service-pending"},
		over:  becomes("10.77.", "rivulet", "kubectl", "get", "svc", "second", "-n", "NAMESPACE", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"),
		hands: map[string]step{"another port": on("a", "rivulet", "kubectl", "patch", "svc", "second", "-n", "NAMESPACE", "--type=json", "-p", `[{"op":"replace","path":"/spec/ports/0/port","value":9091}]`)},
	}, {
		name:    "a host port that another pod has",
		objects: deployment("web", "", "", sleeps+", ports: [{containerPort: 8080, hostPort: 9095}]"),
		harm:    both(running, made(deployment("more", "", "", sleeps+", ports: [{containerPort: 8080, hostPort: 9095}]"))),
		why:     "deploy/more",
		shows:   map[string]string{"pods": "waiting…NAMESPACE", "why": "9095"},
		hands:   map[string]step{"hostPort": on("a", "rivulet", "kubectl", "delete", "deploy", "web", "-n", "NAMESPACE")},
		over:    becomes("1", "rivulet", "kubectl", "get", "deploy", "more", "-n", "NAMESPACE", "-o", "jsonpath={.status.readyReplicas}"),
	}, {
		name:    "a readiness probe at the wrong port",
		objects: deployment("web", "", "", "readinessProbe: {httpGet: {path: /ready, port: 8081}, periodSeconds: 1}"),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "0/1", "why": "it runs and is not ready…8081"},
		hands: map[string]step{"rivulet kubectl logs": on("a", "rivulet", "kubectl", "patch", "deploy", "web", "-n", "NAMESPACE", "--type=json", "-p",
			`[{"op":"replace","path":"/spec/template/spec/containers/0/readinessProbe/httpGet/port","value":8080}]`)},
	}, {
		name:    "a pod that needs the host's network, away",
		before:  offloaded(),
		objects: deployment("web", "", onPeer+", hostNetwork: true", sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"why": "hostNetwork"},
		hands: map[string]step{"remove": on("a", "rivulet", "kubectl", "patch", "deploy", "web", "-n", "NAMESPACE", "--type=json", "-p",
			`[{"op":"remove","path":"/spec/template/spec/hostNetwork"}]`)},
	}, {
		name:    "a pod of before its namespace was offloaded",
		objects: deployment("web", "", onPeer, sleeps),
		harm:    offloaded(),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "waiting…NAMESPACE", "why": "made before"},
	}, {
		name:    "a namespace that is not offloaded",
		objects: deployment("web", "", onPeer, sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"pods": "waiting…NAMESPACE", "why": "offload"},
	}, {
		name:    "a finalizer that nobody removes",
		objects: deployment("web", "", "", sleeps) + "---\n{apiVersion: v1, kind: Pod, metadata: {name: held, namespace: NAMESPACE, finalizers: [example.com/hold]}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: web, image: " + mainjob.Image + "}]}}\n",
		harm:    on("a", "rivulet", "kubectl", "delete", "pod", "held", "-n", "NAMESPACE", "--wait=false"),
		why:     "held",
		shows:   map[string]string{"pods": "Terminating", "why": "example.com/hold"},
		hands:   map[string]step{"finalizer": on("a", "rivulet", "kubectl", "patch", "pod", "held", "-n", "NAMESPACE", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)},
		after:   shell("a", `rivulet kubectl patch pod held -n NAMESPACE --type=merge -p '{"metadata":{"finalizers":null}}' || true`),
	}, {
		name:    "a Job that has tried too often",
		objects: job("backoffLimit: 0, ", `command: ["sh", "-c", "echo no input; exit 4"]`),
		why:     "job/sum",
		shows:   map[string]string{"why": "4"},
		hands:   map[string]step{"rivulet kubectl logs": both(on("a", "rivulet", "kubectl", "delete", "job", "sum", "-n", "NAMESPACE"), made(job("", `command: ["sh", "-c", "true"]`)))},
	}, {
		name: "an Ingress of no class",
		objects: deployment("web", "", "", "ports: [{containerPort: 8080}]") + "---\n{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NAMESPACE}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}\n" +
			"---\n{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: NAMESPACE}, spec: {rules: [{host: web.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}\n",
		why:   "ingress/web",
		shows: map[string]string{"why": "ingress: true"},
		hands: map[string]step{"ingress: true": shell("a", "mkdir -p /etc/rivulet && echo 'ingress: true' > /etc/rivulet/config.yaml && rivulet config reload")},
		over:  becomes("10.77.", "rivulet", "kubectl", "get", "ingress", "web", "-n", "NAMESPACE", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"),
		after: shell("a", "rm -f /etc/rivulet/config.yaml; rivulet config reload || true"),
	}, {
		name:   "an Ingress of another's class",
		before: configured("a", `ingress: true\n`),
		objects: deployment("web", "", "", "ports: [{containerPort: 8080}]") + "---\n{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NAMESPACE}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}\n" +
			"---\n{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, namespace: NAMESPACE}, spec: {ingressClassName: nginx, rules: [{host: web.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}\n",
		why:   "ingress/web",
		shows: map[string]string{"why": "there is no IngressClass nginx"},
		over:  becomes("10.77.", "rivulet", "kubectl", "get", "ingress", "web", "-n", "NAMESPACE", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"),
		after: unconfigured("a"),
	}, {
		name:    "a webhook whose program is gone",
		objects: deployment("web", "", "", sleeps),
		harm:    made("{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: left-over}, webhooks: [{name: left.over.example, failurePolicy: Fail, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {service: {namespace: NAMESPACE, name: gone}}, rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}], namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}]}"),
		from:    "doctor",
		shows:   map[string]string{"status": "admission", "doctor": "validatingwebhookconfiguration left-over"},
		over:    becomes("created", "sh", "-c", "rivulet kubectl create configmap x -n NAMESPACE --dry-run=server"),
		after:   shell("a", "rivulet kubectl delete validatingwebhookconfiguration left-over --ignore-not-found"),
	},
}

// running waits until the namespace's pods run.
func running(t *testing.T, ctx context.Context, ns string) {
	t.Helper()
	await.NoError(t, ctx, 30*time.Second, "its pods run", func() error { return podsRun(t, ctx, ns) })
}

// comes waits for what a command prints on a.
func comes(want string, args ...string) step {
	return func(t *testing.T, ctx context.Context, ns string) {
		await.NoError(t, ctx, 30*time.Second, want+" comes", func() error { return becomes(want, args...)(t, ctx, ns) })
	}
}

func both(steps ...step) step {
	return func(t *testing.T, ctx context.Context, ns string) {
		for _, s := range steps {
			s(t, ctx, ns)
		}
	}
}

func TestMishapsOfPods(t *testing.T) {
	for _, m := range ofPods {
		t.Run(m.name, func(t *testing.T) { play(t, m) })
	}
}
