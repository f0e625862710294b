package explain

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"rivulet/fabric/peer"
	"rivulet/offload/consumer/reflect"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
)

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "lab", Name: name, UID: "u"}
}

func deployment(replicas int32, change func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	if change != nil {
		change(d)
	}
	return d
}

// owned has the pod made by what is explained, with a name of its own.
func owned(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		called(name)(p)
		p.OwnerReferences = []metav1.OwnerReference{{UID: "u", Kind: "ReplicaSet", Name: "web", Controller: new(true)}}
		p.Labels = map[string]string{"app": "web"}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
	}
}

func aService(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.9", Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}}}}
	if change != nil {
		change(s)
	}
	return s
}

func anIngress(class string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{ObjectMeta: meta("web"), Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web"}}}}
	if class != "" {
		i.Spec.IngressClassName = &class
	}
	return i
}

func aNamespace(labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: labels}}
}

func aPeer(state peer.State, reason string, change func(*peer.View)) *peer.View {
	v := &peer.View{Record: peer.Record{ID: "id-of-lab-2", Name: "lab-2"}, State: state, Reason: reason}
	if change != nil {
		change(v)
	}
	return v
}

func aJob(kind batchv1.JobConditionType, reason string) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: meta("web"), Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "Job has reached the specified backoff limit"}}}}
}

func TestWhyOfObjects(t *testing.T) {
	two := []corev1.Node{node("home", "1", nil), node("lab-2", "4", virtual)}
	cordoned := []corev1.Node{two[0], node("lab-2", "4", all(virtual, func(n *corev1.Node) { n.Spec.Unschedulable = true }))}
	lost := map[string]LinkState{"id-of-lab-2": {Why: "silent for 40s; see that it is on"}}
	pods := func(list ...*corev1.Pod) (out []corev1.Pod) {
		for _, p := range list {
			out = append(out, *p)
		}
		return out
	}
	good := asks("100m", on("home", all(running, owned("web-1"))))
	crashing := asks("100m", on("home", all(waits("CrashLoopBackOff", "back-off"), owned("web-2"))))
	starting := asks("100m", on("home", owned("web-0")))
	behindProxy := asks("100m", on("home", all(running, owned("web-1"), func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "setup", Ports: []corev1.ContainerPort{{Name: "setup", ContainerPort: 1}}},
			{Name: "proxy", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{Name: "http-auth", ContainerPort: 4180}}}}
	})))
	classes := []networkingv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: "rivulet"}}}
	local := []storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "local-path", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}}
	burst := map[string]string{policy.NamespaceLabel: "burst"}
	deleted := func(m *metav1.ObjectMeta) { m.DeletionTimestamp = &metav1.Time{Time: now} }
	gone := aNamespace(nil)
	deleted(&gone.ObjectMeta)
	gone.Status.Conditions = []corev1.NamespaceCondition{{Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionTrue, Message: "Some content in the namespace has finalizers remaining: x in 1 resource instances"}}
	protected := claim(corev1.ClaimBound, "", "pv")
	deleted(&protected.ObjectMeta)
	protected.Finalizers = []string{"kubernetes.io/pvc-protection"}
	unreached := claim(corev1.ClaimBound, "", "pv")
	unreached.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: volume.ReachableCondition, Status: corev1.ConditionFalse, Message: "the data are on lab-2, which is no peer any more; peer with it again"}}
	suspended := &batchv1.Job{ObjectMeta: meta("web"), Spec: batchv1.JobSpec{Suspend: new(true)}}
	paused := deployment(1, func(d *appsv1.Deployment) { d.Spec.Paused = true })
	progress := deployment(1, func(d *appsv1.Deployment) {
		d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded", Message: `ReplicaSet "web-1" has timed out progressing.`}}
	})
	cron := func(suspend bool) *batchv1.CronJob {
		return &batchv1.CronJob{ObjectMeta: meta("web"), Spec: batchv1.CronJobSpec{Schedule: "@daily", Suspend: &suspend}}
	}
	failedJob := aJob(batchv1.JobFailed, "BackoffLimitExceeded")
	failedJob.Name, failedJob.UID, failedJob.OwnerReferences = "web-1", "j", []metav1.OwnerReference{{UID: "u", Controller: new(true)}}
	const exceeded = `Error creating: pods "web-1" is forbidden: exceeded quota: tight, requested: cpu=500m,pods=1, used: cpu=2,pods=2, limited: cpu=2,pods=2`

	for name, c := range map[string]struct {
		facts            Facts
		code, what, cure string
	}{
		"a quota":                     {Facts{Object: deployment(2, nil), Nodes: two, Events: event("FailedCreate", exceeded)}, Quota, "exceeded quota: tight", `raise it: rivulet kubectl patch quota -n lab tight -p '{"spec":{"hard":{"cpu":"3","pods":"4"}}}'; or: `},
		"a quota that was raised":     {Facts{Object: deployment(1, nil), Nodes: two, Pods: pods(good), Events: event("FailedCreate", exceeded)}, Fine, "0 of 1 pods are ready", ""},
		"no account":                  {Facts{Object: &appsv1.StatefulSet{ObjectMeta: meta("web")}, Events: event("FailedCreate", `pods "web-0" is forbidden: error looking up service account lab/robot: serviceaccount "robot" not found`)}, Unmade, "cannot be made", "rivulet kubectl create serviceaccount -n lab robot"},
		"refused by admission":        {Facts{Object: &appsv1.ReplicaSet{ObjectMeta: meta("web")}, Events: event("FailedCreate", `pods "web" is forbidden: violates PodSecurity "baseline"`)}, Unmade, "violates PodSecurity", "change what it names in ReplicaSet lab/web"},
		"paused":                      {Facts{Object: paused}, Stopped, "is paused", "rivulet kubectl rollout resume -n lab deployment/web"},
		"no replicas":                 {Facts{Object: deployment(0, nil)}, Stopped, "0 replicas", "rivulet kubectl scale -n lab deployment/web --replicas=1"},
		"suspended":                   {Facts{Object: suspended}, Stopped, "is suspended", `rivulet kubectl patch -n lab job/web -p '{"spec":{"suspend":false}}'`},
		"no node is chosen":           {Facts{Object: &appsv1.DaemonSet{ObjectMeta: meta("web")}}, Selector, "no node is one", "rivulet kubectl label node"},
		"the worst of its pods":       {Facts{Object: deployment(3, nil), Nodes: two, Pods: pods(good, starting, crashing)}, Crash, "2 of 3 pods: the worst is pod web-2: container c ended", "logs -n lab web-2"},
		"all of its pods are well":    {Facts{Object: deployment(1, func(d *appsv1.Deployment) { d.Status.ReadyReplicas = 1 }), Nodes: two, Pods: pods(good)}, Fine, "1 of 1 pods are ready", ""},
		"no progress, and no pod":     {Facts{Object: progress}, Stuck, "timed out progressing", "rivulet kubectl rollout status -n lab deployment/web"},
		"no progress, and why":        {Facts{Object: progress, Nodes: two, Pods: pods(crashing)}, Crash, "pod web-2", "logs"},
		"a Job that was given up":     {Facts{Object: aJob(batchv1.JobFailed, "BackoffLimitExceeded")}, Failed, "BackoffLimitExceeded", "rivulet kubectl logs -n lab job/web"},
		"a Job past its deadline":     {Facts{Object: aJob(batchv1.JobFailed, "DeadlineExceeded")}, Failed, "DeadlineExceeded", "spec.activeDeadlineSeconds"},
		"a Job that ended well":       {Facts{Object: aJob(batchv1.JobComplete, "")}, Fine, "ran to its end", ""},
		"a CronJob that is suspended": {Facts{Object: cron(true)}, Stopped, "starts no Jobs", `rivulet kubectl patch -n lab cronjob/web -p '{"spec":{"suspend":false}}'`},
		"a schedule that was missed":  {Facts{Object: cron(false), Events: event("TooManyMissedTimes", "too many missed start times: 101")}, Schedule, "too many missed", "rivulet kubectl create job -n lab web-by-hand --from=cronjob/web; or: "},
		"a CronJob's last Job":        {Facts{Object: cron(false), Jobs: []batchv1.Job{*failedJob}}, Failed, "its last Job web-1: it was given up", "job/web-1"},

		"no pod is selected": {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "wbe"} }), Nodes: two, Pods: pods(good)}, Endpoints, "no pod has the labels that it selects (app=wbe)", "rivulet kubectl set selector -n lab service web app=web"},
		"no pod at all":      {Facts{Object: aService(nil)}, Endpoints, "no pod has the labels", "rivulet kubectl get pods -n lab --show-labels"},
		"no pod is ready":    {Facts{Object: aService(nil), Nodes: two, Pods: pods(crashing)}, Crash, "none of its pods is ready: pod web-2: container c ended", "logs"},
		"a wrong port": {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("web") }), Nodes: two, Pods: pods(good)}, Endpoints, "no pod of it declares port web; there is http",
			`rivulet kubectl patch service -n lab web --type json -p '[{"op":"replace","path":"/spec/ports/0/targetPort","value":"http"}]'`},
		"a port of a native sidecar":  {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("http-auth") }), Nodes: two, Pods: pods(behindProxy)}, Fine, "leads to 1 ready pods", ""},
		"a port of an init container": {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("setup") }), Nodes: two, Pods: pods(behindProxy)}, Endpoints, "no pod of it declares port setup; there is http-auth, http", "rivulet kubectl edit service -n lab web"},
		"a port that is not declared": {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(9090) }), Nodes: two, Pods: pods(good)}, Fine, "leads to 1 ready pods; none of them declares port 9090, which need not be declared; to try it: rivulet trace lab/web", ""},
		"a name of another protocol":  {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }), Nodes: two, Pods: pods(good)}, Endpoints, "no pod of it declares port http", "rivulet kubectl edit service -n lab web"},
		"a Service that is well":      {Facts{Object: aService(nil), Nodes: two, Pods: pods(good)}, Fine, "leads to 1 ready pods", ""},
		"another name": {Facts{Object: aService(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		})}, Fine, "another name of example.org", ""},
		"no selector and no addresses": {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Selector = nil })}, Endpoints, "no addresses are written", "EndpointSlice"},
		"written addresses": {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Selector = nil }), LeftOut: []reflect.LeftOut{{Service: "web", What: "Service web leads to 192.168.1.20"}},
			Slices: []discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, Endpoints: []discoveryv1.Endpoint{{}}}}}, Fine, "somebody has written", ""},
		"no address": {Facts{Object: aService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }), Nodes: two, Pods: pods(good),
			Problems: []Problem{{Code: "service-pending", Subject: "lab/web", Text: "port 80 is taken", Cure: "choose another"}}}, Address, "it has no address: port 80 is taken", "choose another"},

		"no class of that name":        {Facts{Object: claim(corev1.ClaimPending, "fast", ""), Classes: local}, Class, "no StorageClass fast", "make it again with a class that there is (local-path): rivulet kubectl delete pvc -n lab data"},
		"no default class":             {Facts{Object: claim(corev1.ClaimPending, "", "")}, Class, "none is the default", "rivulet kubectl delete pvc -n lab data"},
		"no pod uses the claim":        {Facts{Object: claim(corev1.ClaimPending, "", ""), Classes: local}, Starting, "no pod uses it", "start one"},
		"its first pod waits":          {Facts{Object: claim(corev1.ClaimPending, "", ""), Classes: local, Nodes: two, Claims: []corev1.PersistentVolumeClaim{*claim(corev1.ClaimPending, "", "")}, Pods: pods(asks("9", withClaim))}, NoRoom, "pod web: home has 1 of cpu free", "request less"},
		"provisioning failed":          {Facts{Object: claim(corev1.ClaimPending, "", ""), Classes: local, Events: event("ProvisioningFailed", "the whole disk is smaller; ask for less")}, Claim, "the whole disk is smaller", "ask for less"},
		"a volume that is lost":        {Facts{Object: claim(corev1.ClaimLost, "", "pv")}, Claim, "is no more", "rivulet kubectl delete pvc -n lab data"},
		"a volume on a cordoned peer":  {Facts{Object: claim(corev1.ClaimBound, "", "pv"), Nodes: cordoned, Volumes: volumeOn("lab-2")}, Taint, "the data are on lab-2: lab-2 takes no new pods", "rivulet uncordon lab-2"},
		"a volume on a lost peer":      {Facts{Object: claim(corev1.ClaimBound, "", "pv"), Nodes: two, Volumes: volumeOn("lab-2"), Links: lost}, Link, "the data are on lab-2: peer lab-2 is not reached", "rivulet doctor peer lab-2"},
		"a volume on no peer any more": {Facts{Object: unreached, Nodes: two[:1], Volumes: volumeOn("lab-2")}, Claim, "no peer any more", "peer with it again"},
		"a volume that is there":       {Facts{Object: claim(corev1.ClaimBound, "", "pv"), Nodes: two, Volumes: volumeOn("home")}, Fine, "its volume is on home", ""},
		"a claim that is in use":       {Facts{Object: protected, Pods: pods(asks("1", on("home", withClaim)))}, Deleting, "goes when pod web does not use it", "rivulet kubectl delete pod -n lab web"},

		"an Ingress without a class":    {Facts{Object: anIngress(""), IngressClasses: classes, Services: []corev1.Service{*aService(nil)}}, Class, "names no class", `rivulet kubectl patch ingress -n lab web -p '{"spec":{"ingressClassName":"rivulet"}}'`},
		"an Ingress of no known class":  {Facts{Object: anIngress("nginx"), IngressClasses: classes, Services: []corev1.Service{*aService(nil)}}, Class, "no IngressClass nginx", "ingressClassName"},
		"the controller is off":         {Facts{Object: anIngress("rivulet"), Services: []corev1.Service{*aService(nil)}}, Class, "is switched off", "`ingress: true`"},
		"what the controller has found": {Facts{Object: anIngress("rivulet"), IngressClasses: classes, Problems: []Problem{{Code: "ingress-unserved", Subject: "lab/web", Text: "its host is another's", Cure: "use another host"}}}, Address, "another's", "use another host"},
		"no Service behind it":          {Facts{Object: anIngress("rivulet"), IngressClasses: classes}, Endpoints, "there is no Service web", "rivulet kubectl get services -n lab"},
		"nothing behind its Service":    {Facts{Object: anIngress("rivulet"), IngressClasses: classes, Services: []corev1.Service{*aService(nil)}}, Endpoints, "Service web: no pod has the labels", "--show-labels"},

		"a label that is not known":                {Facts{Object: aNamespace(map[string]string{policy.NamespaceLabel: "yes"})}, Label, "is not understood", "use one of"},
		"a namespace without a peer":               {Facts{Object: aNamespace(burst), Nodes: two[:1]}, Link, "offloaded to peers, and there is none", "rivulet peers"},
		"a namespace of a peer that lends nothing": {Facts{Object: aNamespace(burst), Nodes: two[:1], Links: map[string]LinkState{"id-of-lab-2": {Name: "lab-2", Connected: true, LendsNothing: true}}}, Link, "none takes its pods: lab-2 lends nothing now", "ask its owner"},
		"a peer without room":                      {Facts{Object: aPeer(peer.Connected, "", nil), Nodes: two[:1], Links: map[string]LinkState{"id-of-lab-2": {LendsNothing: true}}}, Link, "lab-2 lends nothing now", "ask its owner what it shares; or: rivulet doctor peer lab-2"},
		"a peer whose node is being made":          {Facts{Object: aPeer(peer.Connected, "", nil), Nodes: two[:1]}, Starting, "its virtual node is being made", ""},
		"no peer takes its pods":                   {Facts{Object: aNamespace(burst), Nodes: cordoned}, Taint, "none takes its pods: lab-2 takes no new pods (cordoned)", "rivulet uncordon lab-2"},
		"a namespace that is well":                 {Facts{Object: aNamespace(burst), Nodes: two}, Fine, "may go to lab-2 (burst)", ""},
		"a namespace with older pods":              {Facts{Object: aNamespace(burst), Nodes: two, Pods: pods(good)}, Fine, "1 of them only when they are made again: rivulet kubectl rollout restart deployment -n lab", ""},
		"a namespace that stays":                   {Facts{Object: aNamespace(nil), Nodes: two}, Fine, "run at home only", ""},
		"a quota that is used up": {Facts{Object: aNamespace(nil), Nodes: two, Quotas: []corev1.ResourceQuota{{ObjectMeta: meta("tight"), Status: corev1.ResourceQuotaStatus{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}}}}}, Quota, "tight is used up: 2 of 2 pods", "rivulet kubectl describe quota -n lab tight"},
		"a namespace that does not go": {Facts{Object: gone}, Deleting, "finalizers remaining", "rivulet kubectl get all,pvc -n lab"},

		"a peer that waits here":  {Facts{Object: aPeer(peer.Waiting, "", nil), Problems: []Problem{{Code: "peer-waiting", Subject: "lab-2 (" + peer.ID("id-of-lab-2").Short() + ")"}}}, Approval, "waits for approval here", "rivulet approve lab-2; or: rivulet deny lab-2"},
		"a peer that waits there": {Facts{Object: aPeer(peer.Waiting, "lab-2 has not said yes; run on lab-2: rivulet approve home", nil)}, Approval, "has not said yes", "run on lab-2: rivulet approve home"},
		"a peer that was denied":  {Facts{Object: aPeer(peer.Denied, "the peering was ended here on Monday: rivulet peer lab-2 takes that back", nil)}, Approval, "was ended here on Monday", "rivulet peer lab-2"},
		"a peer that is lost":     {Facts{Object: aPeer(peer.Lost, "silent for 40s; x", nil)}, Link, "silent for 40s", "rivulet doctor peer lab-2; or: if it is gone for good: rivulet unpeer lab-2 --force"},
		"a peer that ended it":    {Facts{Here: "home", Object: aPeer(peer.Refused, "it has ended the peering; to have it back, the cluster that says so has to name it: rivulet peer NAME", nil)}, Link, "ended the peering", "on lab-2: rivulet peer home"},
		"a peer that is no peer":  {Facts{Object: aPeer(peer.Refused, "another group; use one name", nil)}, Link, "another group", "use one name"},
		"nothing is sent":         {Facts{Object: aPeer(peer.Connected, "", func(v *peer.View) { v.Roles.NoConsume = true }), Nodes: two}, Role, "sends it no pods", "rivulet peer lab-2 --consume=on"},
		"nothing is lent":         {Facts{Object: aPeer(peer.Connected, "", func(v *peer.View) { v.TheirRoles.NoProvide = true }), Nodes: two}, Role, "lends nothing", "--provide=on"},
		"a cordoned peer":         {Facts{Object: aPeer(peer.Connected, "", nil), Nodes: cordoned}, Taint, "cordoned", "rivulet uncordon lab-2"},
		"a peer that is far":      {Facts{Object: aPeer(peer.Connected, "", func(v *peer.View) { v.RTT = 80 * time.Millisecond }), Nodes: two}, Slow, "80ms away", "doctor peer lab-2"},
		"a peer that is well":     {Facts{Object: aPeer(peer.Connected, "", nil), Nodes: two}, Fine, "takes pods", ""},

		"a node under pressure": {Facts{Object: new(node("home", "1", tainted(corev1.TaintNodeDiskPressure, corev1.NodeDiskPressure)))}, Pressure, "DiskPressure", "rivulet doctor --only disk-space"},
		"a node with a taint": {Facts{Object: new(node("home", "1", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}}
		}))}, Taint, "has taint own", "rivulet kubectl taint node home own-"},
		"a node that is well": {Facts{Object: new(two[0])}, Fine, "ready and takes pods", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.facts.Now = now
			a := Explain(c.facts)
			if len(a.Reasons) == 0 || a.Kind == "" || a.Name == "" || a.Pod != "" {
				t.Fatalf("%+v", a)
			}
			if r := a.Reasons[0]; r.Code != c.code || !strings.Contains(r.What, c.what) || !strings.Contains(r.Cure, c.cure) || c.cure == "" && r.Cure != "" {
				t.Errorf("%+v\nwant %s, %q, %q", a.Reasons, c.code, c.what, c.cure)
			}
		})
	}
}
