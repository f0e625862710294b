package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// EventReporter marks events at home that are copies; their source has the original's reporter.
const EventReporter = "rivulet.dev/away"

// maxEventMessage is in bytes.
const maxEventMessage = 1024

// EventName is the name of home's copy of the event.
func EventName(e *corev1.Event) string {
	sum := sha256.Sum256([]byte(e.UID))
	return hex.EncodeToString(sum[:8])
}

// Event is home's copy of event e on the away object.
func Event(e *corev1.Event, twin, home string, away metav1.Object, target string) *corev1.Event {
	pod := away.GetAnnotations()[policy.HomePodAnnotation]
	out := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: EventName(e)},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: home, Name: pod,
			UID: types.UID(away.GetLabels()[policy.HomeUIDLabel]), FieldPath: e.InvolvedObject.FieldPath},
		Type: e.Type, Reason: e.Reason, Count: max(e.Count, 1), FirstTimestamp: e.FirstTimestamp, LastTimestamp: e.LastTimestamp,
		Source:              corev1.EventSource{Component: e.Source.Component, Host: target},
		ReportingController: EventReporter, ReportingInstance: target,
		Message: e.Message,
	}
	names := []string{away.GetName(), pod, twin, home} // the twin's name contains home's ID
	if uid := string(away.GetUID()); uid != "" {
		names = append(names, uid, string(out.InvolvedObject.UID))
	}
	out.Message = strings.NewReplacer(names...).Replace(e.Message)
	if e.InvolvedObject.Kind != "Pod" {
		out.InvolvedObject.FieldPath = ""
	}
	if out.Source.Component == "" {
		out.Source.Component = e.ReportingController
	}
	if s := e.Series; s != nil {
		out.Count, out.LastTimestamp = max(s.Count, 1), metav1.NewTime(s.LastObservedTime.Time)
	}
	if out.FirstTimestamp.IsZero() {
		out.FirstTimestamp = e.CreationTimestamp
		if !e.EventTime.IsZero() {
			out.FirstTimestamp = metav1.NewTime(e.EventTime.Time)
		}
	}
	if out.LastTimestamp.IsZero() {
		out.LastTimestamp = out.FirstTimestamp
	}
	peer.Clean(out, peer.Prose)
	if len(out.Message) > maxEventMessage {
		out.Message = strings.ToValidUTF8(out.Message[:maxEventMessage-3], "") + "..."
	}
	return out
}
