"""The instrument of a process that trains: it turns calls of torch, and of packages that train with
it, into events.

An event is a call: of an optimizer's step, of a module, of a checkpoint's save. Handlers run before
the call, after it, or around it. ``instrument`` has the subscriptions of this process:

    subscription = instrument.on(Step, after=lambda event: print(event.owner))
    instrument.on(Backward, around=timed, when=lambda: step in (1, 10, 100))
    subscription.end()

A method of torch is replaced only while something subscribes to its event. What changes a call,
such as a dropout that draws and drops nothing, is no event: it uses ``Patches`` itself.

The package needs the standard library and torch, and imports nothing else: its files can be copied
into any interpreter from Python 3.9 on. That is why the few lines that find the gradients of a step
with a closure are here (``Gradients``) and in ``harness.detectors.steps``, which users copy
without this package. All other code of the harness that runs in a rank subscribes here.
"""

from .backwards import (
    Backward,
    Collective,
    EngineBackward,
    GraphBackward,
    Joined,
    LossValue,
    ModuleCall,
    NewCommunication,
    OutputGradient,
    StageBackward,
    StageGradients,
)
from .batches import Batch, DrawnIndex, Epoch, Fetch, MixedStream, NewFetcher, NewIterator
from .checkpoints import (
    AsyncSave,
    Checkpoint,
    FilledState,
    Load,
    LoadedState,
    MergedAdapter,
    PlannedLoad,
    PlannedSave,
    RestoredTraining,
    Save,
    SavedTensors,
)
from .event import Event
from .instrument import Instrument, Subscription, instrument
from .patches import Patches, calling_frame, compiler_question, frames, replace_everywhere
from .steps import (
    Clip,
    EngineClip,
    Gradients,
    NewOptimizer,
    NewScaler,
    NewSchedule,
    NormedClip,
    PreparedSchedule,
    ScalerStep,
    Step,
    TrainerStep,
    Unscale,
    ValueClip,
    WrapperStep,
    WrapperUnscale,
    ZeroGrad,
)
from .trainers import LoggedNumbers, TrainerEnd, engine_of, is_engine, wrapper_of
