package resourcemetrics

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "whose use it is"},
	{Name: "cpu", Type: "string", Description: "CPU, in thousandths of a core"},
	{Name: "memory", Type: "string", Description: "working set"},
	{Name: "Window", Type: "string", Description: "over how long CPU was averaged"},
}

func newTable() metav1.Table {
	return metav1.Table{
		TypeMeta:          metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"},
		ColumnDefinitions: columns, Rows: []metav1.TableRow{},
	}
}

func addRow(t *metav1.Table, m metav1.ObjectMeta, used []corev1.ResourceList, over metav1.Duration) {
	var cpu, memory int64
	for _, u := range used {
		cpu += u.Cpu().MilliValue()
		memory += u.Memory().Value()
	}
	t.Rows = append(t.Rows, metav1.TableRow{
		Cells: []any{m.Name, fmt.Sprintf("%dm", cpu), fmt.Sprintf("%dKi", memory>>10), over.Duration.String()},
		Object: runtime.RawExtension{Object: &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: m,
		}},
	})
}
