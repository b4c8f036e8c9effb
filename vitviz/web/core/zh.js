// The texts of the page in Chinese.
import { CLASSES_ZH } from './classes_zh.js';

export const ZH = {
  classes: CLASSES_ZH,
  // Texts of app.html and of the scripts, by their English. {0} stands for the first value, which is often a number.
  page: {
    'Skip to the photograph': '跳到照片',
    'Drop a photograph, point at a patch, and see where every head of a Vision Transformer looks.':
      '拖入一张照片，指向一个图块，看 Vision Transformer 的每个注意力头在关注哪里。',
    'Where the model ran, the time of one forward pass, and the number of patches': '运行设备、一次前向计算的时间和图块数',
    'Switch between light and dark': '切换浅色和深色', Model: '模型', 'Name of another model': '另一个模型的名称',
    Load: '载入', 'Upload a checkpoint': '上传权重文件', Close: '关闭', Views: '视图', 'Full screen': '全屏',
    'Full screen (f)': '全屏（f）', Photograph: '照片', 'Your photo': '您的照片', Webcam: '摄像头', Paste: '粘贴',
    'or drop one anywhere on the page': '或把照片拖到页面任意处', Examples: '示例', 'Input size': '输入尺寸',
    'The model’s input': '模型的输入', 'The photograph after preprocessing': '预处理后的照片',
    'Take the photograph': '拍照', Cancel: '取消', 'Attention explorer': '注意力浏览器',
    'Compare with': '对比：', 'another layer': '另一层', 'another head': '另一个头',
    'another photograph': '另一张照片', 'another model': '另一个模型',
    'Cut the photograph into more and smaller patches': '把照片切成更多、更小的图块',
    'This shows what the token attends to, not why the model predicts a class.':
      '这里显示词元关注什么，不是模型预测某个类别的原因。',
    'What is': '什么是', patch: '图块', layer: '层', head: '头',
    ['patch: one of the square tiles that the photograph is cut into. The model reads the photograph as a '
      + 'sequence of patches.']:
      '图块：照片被切成的方块。模型把照片读作图块的序列。',
    ['CLS: an extra token beside the patches. It contains no part of the photograph and collects the '
      + 'information that the model needs to classify it.']:
      'CLS：图块之外的一个词元，不含照片的任何部分，用来收集分类所需的信息。',
    'layer: one processing step of the model. In each layer, every token takes in information from all tokens.':
      '层：模型的一个处理步骤。在每一层，每个词元都从所有词元获取信息。',
    ['head: each layer computes attention several times in parallel, once per head. Different heads '
      + 'attend to different things.']:
      '头：每一层并行计算多次注意力，每个头一次。不同的头关注不同的内容。',
    'Search the classes': '搜索类别', Search: '搜索', Classes: '类别', 'Texts as classes': '以文字为类别', Classify: '分类',
    'a cat, a sofa, nothing': 'a cat, a sofa, nothing',
    'Other models with as many classes': '类别同样多的其他模型', From: '起点', Unpin: '取消固定', Show: '显示',
    'All patches': '所有图块', Attention: '注意力', Rollout: 'Rollout',
    'what it attends to': '它关注什么', 'what attends to it': '什么关注它', 'Rollout options': 'Rollout 选项',
    'Combine heads by': '合并各个头', 'Discard the weakest': '舍去最弱的', 'Skip connection': '跳跃连接',
    'First layer': '起始层', 'Play: every': '播放间隔', 'Animation speed': '动画速度', Compare: '对比', 'Copy link': '复制链接',
    'Copy link with photo': '复制含照片的链接', 'Save picture': '保存图片', 'Save as HTML': '保存为 HTML',
    'More (m)': '更多（m）', 'Keys (?)': '快捷键（?）', Keys: '快捷键', 'Strongest patches': '最强的图块', More: '更多',
    Direction: '方向', 'Map over the photograph': '照片上的图', 'Colours and gamma': '颜色和伽马', Opacity: '不透明度',
    'Opacity follows the value': '不透明度随数值变化', 'Photograph only': '只显示照片', 'Patch grid': '图块网格',
    Smooth: '平滑', 'Number the strongest': '给最强的图块编号', 'Colours': '颜色', Gamma: '伽马',
    'Scale of the small maps': '小图的色标', 'per map': '每图各自', shared: '共用',
    'Every head of every layer': '每一层的每个头', 'The full attention matrix of one head': '一个头的完整注意力矩阵',
    Explanations: '解释', 'What if we hide these patches?': '如果遮住这些图块？', Class: '类别',
    'rather than': '而不是', 'What to explain': '解释什么',
    'Swap the two classes': '交换两个类别', 'Save as a card': '保存为卡片', 'Send the card': '发送卡片',
    'Click patches on the photograph to hide them, or hide the strongest ones.': '点击照片上的图块将其遮住，或遮住最强的图块。',
    'Hide the strongest': '遮住最强的', 'Show all patches again': '重新显示所有图块', Method: '方法',
    'Is this map faithful?': '这张图可信吗？', Heads: '注意力头',
    'The map shows the head under the pointer, from the token chosen in Explore.':
      '图中是指针所指的头，起点是“探索”中选定的词元。',
    'Prediction with heads switched off': '关闭部分头之后的预测', 'Switch all on': '全部打开', 'Colour by': '着色依据',
    'Click to switch heads off': '点击关闭头', Layers: '层', Layer: '层',
    'Statistic of each head: layers down, heads across': '每个头的统计量：行为层，列为头',
    'The prediction after each layer': '每一层之后的预测',
    ['The final norm and the classifier are applied to the tokens after each layer (the “logit lens”). '
      + 'The classifier was not trained on early layers, so the curves show what it would predict there, not '
      + 'everything that a layer has computed.']:
      '把最后的归一化和分类器用于每一层之后的词元（“logit lens”）。分类器没有在靠前的层上训练过，所以曲线显示它在那里会预测什么，而不是该层计算出的全部内容。',
    'Which patches look alike to the model': '在模型看来哪些图块相似',
    ['The first three principal components of the patches after each layer, shown as red, green and blue. '
      + 'Patches of similar colour are similar to the model; the colours themselves mean nothing. The number '
      + 'is the share of the variance that the three components explain.']:
      '每一层之后图块的前三个主成分，用红、绿、蓝表示。颜色相近的图块在模型看来相似；颜色本身没有含义。数字是三个主成分解释的方差比例。',
    'The prediction from each patch': '由每个图块得到的预测',
    'from the': '依据', 'similarity to a patch': '与一个图块的相似度', 'principal components': '主成分',
    foreground: '前景', 'Save the basis of the components': '保存主成分的基', 'Basis for Python (NPZ)': '供 Python 使用的基（NPZ）',
    'Principal components of the {0} of layer {1}': '第 {1} 层{0}的主成分',
    'Foreground by the {0} of layer {1}': '前景，依据第 {1} 层的{0}',
    'One basis of principal components for both photographs.': '两张照片共用一组主成分。',
    'Patches of similar colour are similar to the model. The three components explain {0} of the variance.':
      '颜色相近的图块在模型看来相似。三个主成分解释了 {0} 的方差。',
    '{0} of the patches are foreground by the first principal component, which explains {1} of the variance.':
      '按第一主成分，{0} 的图块属于前景；该主成分解释了 {1} 的方差。',
    'Target: {0}.': '目标：{0}。', 'Change in Explain': '在“解释”中更改', Reset: '重置',
    'Back to the prediction': '回到预测',
    'the most probable classes': '概率最高的类别', 'Logit after each layer': '每一层之后的 logit 值',
    'Cosine after each layer': '每一层之后的余弦', 'The target after each layer': '每一层之后的目标',
    'The target from each patch': '由每个图块得到的目标',
    ['The final norm is applied to the tokens after each layer, and the target is read from them as from the features '
      + '(the “logit lens”). Early layers were not trained for this.']:
      '把最后的归一化用于每一层之后的词元，并像读取特征那样从中读取目标（“logit lens”）。靠前的层没有为此训练过。',
    'The target is read from each patch as if it were the only one.': '单独从每个图块读取目标。',
    ['The classifier is applied to each patch as if it were the only one. If the classifier also reads '
      + 'CLS, CLS is added to every patch. Late layers copy global information into the patches: a uniform '
      + 'colour in the last layers does not mean that every patch shows the class.']:
      '分类器单独用于每个图块。如果分类器还读取 CLS，则给每个图块加上 CLS。靠后的层把全局信息复制到图块中：最后几层颜色均匀，并不表示每个图块都属于这个类别。',
    Lecture: '讲解', 'How to read this': '如何阅读',
    Explore: '探索', Explain: '解释', CLS: 'CLS', '¼ s': '¼ 秒', '0.6 s': '0.6 秒', '1.2 s': '1.2 秒',
    'timm:vit_small_patch16_224.dino, hf:facebook/dinov2-small or torchvision:vit_b_16':
      'timm:vit_small_patch16_224.dino、hf:facebook/dinov2-small 或 torchvision:vit_b_16',
    'This view as one file, which opens without a network': '把当前视图存为一个文件，无需网络即可打开',
    // Texts of the scripts. The first two join sentences, and items of a list.
    ' ': '', ', ': '、', '{0}.': '{0}。', '{0}, {1}': '{0}，{1}', '{0}: {1}': '{0}：{1}', '{0}: {1}.': '{0}：{1}。',
    '{0}: {1} {2}': '{0}：{1} {2}', '{0} ({1})': '{0}（{1}）', '{0} or {1}': '{0}或{1}', '{0} of {1}': '{0} / {1}',
    // Layers, heads and patches
    'row {0}, column {1}': '第 {0} 行第 {1} 列', 'Row {0}, column {1}: {2}.': '第 {0} 行第 {1} 列：{2}。',
    'patch {0}': '{0}的图块', 'all patches': '所有图块', 'register {0}': '寄存器 {0}', distillation: '蒸馏词元',
    registers: '寄存器', self: '自身', 'from {0}': '从{0}出发', 'to {0}': '关注{0}', 'head {0}': '头 {0}', mean: '平均',
    max: '最大', min: '最小', '{0} of {1} heads': '{1} 个头的{0}', '{0} patch': '{0} 个图块', '{0} patches': '{0} 个图块',
    '{0} head': '{0} 个头', '{0} heads': '{0} 个头', '{0} layer': '{0} 层', 'All {0} layers': '全部 {0} 层',
    '{0} × {1} patches': '{0} × {1} 个图块', '{0} pixels': '{0} 像素', 'Layer {0}': '第 {0} 层', 'layer {0}': '第 {0} 层',
    rollout: 'rollout', 'layer, 1 to {0}': '层，1 到 {0}', 'Layer {0}, head {1}': '第 {0} 层，头 {1}',
    '{0} (stage {1})': '{0}（阶段 {1}）', 'Stage {0}: {1} patches, {2}': '阶段 {0}：{1} 个图块，{2}',
    'This tab needs attention over all tokens. In this model, patches attend only within windows.':
      '此视图需要所有词元之间的注意力；该模型的图块只在窗口内互相关注。',
    'Switching heads off needs attention over all tokens. In this model, patches attend only within windows.':
      '关闭注意力头需要所有词元之间的注意力；该模型的图块只在窗口内互相关注。',
    'Hidden patches are those of the last stage, and blurred: the model reads every patch.':
      '隐藏的是最后阶段的图块，并以模糊代替：该模型会读取每个图块。',
    'Layer {0}, {1}': '第 {0} 层，{1}', 'Layer {0}, {1}, {2}': '第 {0} 层，{1}，{2}', 'Layer {0}: {1}, {2}': '第 {0} 层：{1}，{2}',
    '{0}, {1} of heads': '{0}，各头的{1}', '{0}, pinned': '{0}，已固定', '{0}, off': '{0}，已关闭', '{0}: off': '{0}：已关闭',
    'Rollout of layers {0} to {1}, {2} of heads, {3}': '第 {0} 到 {1} 层的 rollout，各头的{2}，{3}',
    'skip connection {0}': '跳跃连接 {0}', 'weakest {0} discarded': '舍去最弱的 {0}', 'gamma {0}': '伽马 {0}',
    // The sentences about a map
    'This patch': '这个图块', 'The average patch': '平均来看，图块',
    '{0} attends mostly to tokens outside the picture.': '{0}主要关注图像之外的词元。',
    '{0} attends almost evenly to everything.': '{0}几乎均匀地关注所有词元。',
    'This file cannot be read. Choose another one.': '无法读取此文件。请选择另一个文件。',
    'This link is too long for a QR code.': '链接太长，无法生成二维码。',
    '{0} attends mostly to itself.': '{0}主要关注自身。',
    '{0} attends mostly to itself and its neighbours.': '{0}主要关注自身和相邻图块。',
    '{0} attends mostly along its row.': '{0}主要关注所在的行。',
    '{0} attends mostly along its column.': '{0}主要关注所在的列。',
    '{0} attends mostly to one patch.': '{0}主要关注一个图块。', '{0} attends mostly to {1} patches.': '{0}主要关注 {1} 个图块。',
    '{0} attends mostly to the top third of the picture.': '{0}主要关注画面上方三分之一。',
    '{0} attends mostly to the bottom third of the picture.': '{0}主要关注画面下方三分之一。',
    '{0} attends mostly to the left third of the picture.': '{0}主要关注画面左侧三分之一。',
    '{0} attends mostly to the right third of the picture.': '{0}主要关注画面右侧三分之一。',
    '{0} attends to many patches, most of them far away.': '{0}关注许多图块，大多在远处。',
    '{0} attends to many patches: half goes to {1} of {2}.': '{0}关注许多图块：一半注意力在 {2} 个图块中的 {1} 个上。',
    '{0} stays on the CLS token itself.': '{0} 留在 CLS 词元自身。', '{0} stays on the patch itself.': '{0} 留在图块自身。',
    '{0} stays on the register itself.': '{0} 留在寄存器自身。',
    '{0} stays on the distillation token itself.': '{0} 留在蒸馏词元自身。',
    'Outside the picture: {0}.': '图像之外：{0}。', '{0} on {1}': '{1} {0}',
    'Spread: {0} (100 %: evenly on all tokens).': '分散度：{0}（100 % 表示均匀分布在所有词元上）。',
    'Mean distance: {0} patches.': '平均距离：{0} 个图块。', 'Strongest: {0}, {1}.': '最强：{0}，{1}。',
    'of attention': '的注意力', 'up to {0}': '最高 {0}', 'under 1 %': '低于 1 %', 'over 99 %': '高于 99 %',
    'Colours end at {0}; dots mark {1} beyond it (up to {2}).': '色标止于 {0}；圆点标出超出它的 {1}（最高 {2}）。',
    'one scale per map: compare shapes, not brightness': '每张图各有色标：请比较形状，而不是亮度',
    'shared scale: {0} to {1} per patch': '共用色标：每个图块 {0} 到 {1}',
    'One row per layer: the mean, then each head; {0}.': '每行一层，先是平均，再是各个头；{0}。',
    'Labels are layer.head; {0}.': '编号为“层.头”；{0}。',
    'Layer {0}, head {1}, {2} × {2} tokens.': '第 {0} 层，头 {1}，{2} × {2} 个词元。',
    'Layer {0}, head {1}, {2} × {2} tokens (one patch in {3}).': '第 {0} 层，头 {1}，{2} × {2} 个词元（每 {3} 个图块取一个）。',
    ['Each row shows where one token attends; lines separate the rows of patches. Colours show the square root of '
      + 'attention, because most values are close to zero.']:
      '每一行显示一个词元关注哪里；线条分隔图块的各行。颜色表示注意力的平方根，因为大多数值接近零。',
    'Choose a head above to see another one.': '在上方选择一个头，可以查看另一个。',
    'Reading all rows of layer {0}: {1} done.': '正在读取第 {0} 层的所有行：已完成 {1}。',
    'Photograph. Arrow keys move the patch, c returns to CLS, question mark lists all keys.':
      '照片。方向键移动图块，c 返回 CLS，问号列出所有按键。',
    'photograph with attention map': '叠加注意力图的照片',
    'All attention of one head, a row for each token': '一个头的全部注意力，每个词元一行',
    'Hover to explore. Click to pin a patch.': '移动指针来探索，点击可固定一个图块。', 'Pin this patch': '固定这个图块',
    'Your turn': '轮到您了', 'blue to red, white at zero': '蓝到红，零为白色',
    '■ Stop heads': '■ 停止播放头', '■ Stop layers': '■ 停止播放层', '▶ Next head': '▶ 下一个头', '▶ Next layer': '▶ 下一层',
    '▶ Play heads': '▶ 逐头播放', '▶ Play layers': '▶ 逐层播放',
    'Similar patches': '相似图块', 'Similarity to {0}, {1} of layer {2}': '与{0}的相似度，第 {2} 层的{1}',
    tokens: '词元', queries: '查询', keys: '键', values: '值', 'of layer': '层',
    'Mutual matches': '互相匹配',
    'Lines between patches of which each is the other’s nearest neighbour': '互为最近邻的图块之间的连线',
    'similar patches on and off': '打开或关闭相似图块',
    'Point at a patch to see which patches are similar': '指向一个图块，看哪些图块与它相似',
    'Only patches of the same model can be compared': '只能比较同一个模型的图块',
    'The patches could not be compared': '无法比较图块', 'The patches could not be compared. {0}': '无法比较图块。{0}',
    'Each photograph has its own scale.': '每张照片各用自己的色标。',
    '{0} of {1}: {2}': '{0}（共 {1}）：{2}',
    '{0} line between mutual nearest neighbours': '互为最近邻的连线 {0} 条',
    '{0} lines between mutual nearest neighbours': '互为最近邻的连线 {0} 条', '{0} and {1}, {2}': '{0}和{1}，{2}',
    'This page cannot compare patches. Open the photograph in the app.': '此页面无法比较图块。请在应用中打开照片。',
    'Layer {0} could not be loaded': '无法载入第 {0} 层', 'Rollout could not be loaded': '无法载入 rollout',
    'With this many patches, rollout is available only for “what it attends to”':
      '图块这么多时，rollout 只能用于“它关注什么”',
    'This map does not exist for this photograph': '这张照片没有这幅图',
    // Keys
    'move the patch': '移动图块', 'previous and next layer': '上一层和下一层', 'previous and next head': '上一个头和下一个头',
    'mean of all heads': '所有头的平均', 'more controls and numbers': '更多控件和数值',
    'from CLS (from all patches if the model has no CLS)': '从 CLS 出发（没有 CLS 的模型从所有图块出发）',
    'what it attends to, or what attends to it': '它关注什么，或什么关注它', 'rollout on and off': '打开或关闭 rollout',
    'patch grid on and off': '显示或隐藏图块网格', 'map on and off': '显示或隐藏图', 'full screen on and off': '进入或退出全屏',
    'undo; with Shift, redo': '撤销；加 Shift 为重做', 'this list': '这个列表',
    'close the help; unpin the patch': '关闭帮助；取消固定图块',
    'Lecture: previous and next step; in full screen, previous and next part of it':
      '讲解：上一步和下一步；全屏时为该步的上一部分和下一部分',
    'Lecture in full screen: notes on and off': '讲解全屏：显示或隐藏讲稿',
    'Lecture: black screen, until the next key': '讲解：黑屏，直到按下一个键',
    // Predictions
    '{0} class': '{0} 个类别', '{0} classes': '{0} 个类别', '{0} thing': '{0} 种事物', '{0} things': '{0} 种事物',
    '{0} label': '{0} 个标签', '{0} labels': '{0} 个标签', 'Of {0}: {1}': '{0}中：{1}',
    'None of {0}; the best match is {1}': '{0}都不符合；最接近的是{1}',
    'Perhaps none of the {0} this model knows; the best match is {1}': '也许不是模型认识的 {0}之一；最接近的是{1}',
    'Best match among {0}: {1} {2}': '在 {0}中最接近：{1} {2}', 'Not sure: perhaps {0}': '不确定：也许是{0}',
    'Probably some kind of {0} ({1}): perhaps {2}': '很可能是某种{0}（{1}）：也许是{2}',
    '{0}; this model has only {1} possible answers': '{0}；该模型只有 {1} 个可能的答案',
    'Best match among only {0}, all that this model knows': '模型只认识 {0}，其中最接近的',
    'Best match among the {0} this model knows': '在模型认识的 {0}中最接近的', 'No predictions': '没有预测',
    '{0} text': '{0} 段文字', '{0} texts': '{0} 段文字', 'Best match among {0}': '在 {0}中最接近的', 'All {0}': '全部 {0}',
    'Expected at most 100 short texts, separated by commas. Use fewer words.':
      '应为不超过 100 段简短的文字，用逗号分隔。请减少字数。',
    'A static site has no text tower to read texts. Use vitviz app.': '静态网站没有读取文字的文本塔。请使用 vitviz app。',
    ['The best match is below {0}. At and above that, at least 90\u00a0% of the predictions on validation images were '
      + 'right.']:
      '最接近的类别低于 {0}。达到这个数值的预测，在验证图像上至少 90\u00a0% 是正确的。',
    'All {0} this model knows': '模型认识的全部 {0}', '{0} in alphabetical order.': '共 {0} 个，按拼音排列。',
    '{0} of {1}.': '{1} 个中的 {0} 个。', '{0} of {1}, the first {2} listed.': '{1} 个中的 {0} 个，列出前 {2} 个。',
    'The model can only return one of these classes.': '模型只能给出这些类别之一。',
    'Use a model with {0} classes: {1}': '使用有 {0} 个类别的模型：{1}', 'Your models': '您的模型',
    'Another model …': '另一个模型……', Sharper: '更精细', Standard: '标准', 'Cut into {0} × {1} patches': '切成 {0} × {1} 个图块',
    'Your photograph': '您的照片',
    // Explain
    'Photograph with the map of a method. Arrow keys read the map patch by patch, Enter hides a patch.':
      '叠加了一种方法的图的照片。方向键逐个图块读取数值，回车键遮住一个图块。',
    probability: '概率', logit: 'logit 值', cosine: '余弦', value: '数值', 'no target': '无目标',
    ['The test hides the patches that the map ranks highest. If the map is faithful, the {0} of the target falls '
      + 'faster than with random patches.']:
      '检验会遮住图中排名最高的图块。如果这张图可信，目标的{0}会比随机遮住图块时下降得更快。',
    ['The area is the mean {0} while patches are hidden (a smaller area is better) or shown (a larger area is '
      + 'better). The brackets give the range of the random orders.']:
      '面积是遮住图块（越小越好）或显示图块（越大越好）过程中的平均{0}。括号内是随机顺序的范围。',
    'Type a text, such as “a cat”, to explain its similarity to the photograph.':
      '输入一段文字（例如“a cat”），解释它与照片的相似度。',
    ['The similarity needs a second photograph with the same model (“Compare” in Explore). The prediction is explained '
      + 'instead.']:
      '相似度需要用同一模型打开的第二张照片（“探索”中的“对比”）。现在改为解释预测。',
    'Tick several for a group, whose probabilities add up (Shift+Enter).': '勾选多个即成一组，其概率相加（Shift+Enter）。',
    'beats random by {0}': '优于随机 {0}', '{0} above random, may be chance': '比随机高 {0}，可能是偶然',
    'below random by {0}': '比随机低 {0}', '{0} s': '{0} 秒',
    'A class cannot be compared with itself, so it is compared with all others.':
      '一个类别不能与自身比较，因此改为与所有其他类别比较。',
    ['{0} switched off in the tab Heads. The map and its test use all heads; only the probabilities with hidden '
      + 'patches take this into account.']:
      '在“注意力头”标签页中关闭了 {0}。图和检验使用所有的头；只有遮住图块后的概率考虑了这一点。',
    'Why {0}, not {1}?': '为什么是{0}，而不是{1}？', 'No class has this name.': '没有这个名称的类别。',
    '{0} classes; the first {1} are listed. Type to find the others.': '共 {0} 个类别，列出前 {1} 个。输入文字可查找其余类别。',
    'Red patches speak for {0}, blue ones for {1}.': '红色图块支持{0}，蓝色图块支持{1}。',
    'Bright patches speak for {0} rather than {1}.': '明亮的图块支持{0}而不是{1}。',
    'This map is the same for every class: it cannot tell {0} from {1}.': '这张图对每个类别都一样，无法区分{0}和{1}。',
    'Use {0}': '改用{0}', 'Hide {0} % more': '再遮住 {0} %', 'Hide until the answer flips': '遮到答案翻转为止',
    'With all patches, {0} leads {1}.': '不遮任何图块时，{0}领先{1}。',
    'With all patches, {1} leads {0} already. Swap the two classes to see what speaks for {1}.':
      '不遮任何图块时，{1}已经领先{0}。交换两个类别，可以看到什么支持{1}。',
    'With {2} of {3} patches hidden, {0} still leads {1}.': '遮住 {3} 个图块中的 {2} 个，{0}仍然领先{1}。',
    'With {2} of {3} patches hidden, the answer flips: {1} leads {0}.': '遮住 {3} 个图块中的 {2} 个，答案翻转：{1}领先{0}。',
    'The best match is {0}.': '最佳匹配是{0}。', 'Probability of both classes': '两个类别的概率',
    'Would random patches do the same? The test hides patches in random orders for comparison.':
      '随机遮住图块也会这样吗？检验会按随机顺序遮住图块作比较。',
    'Tested: this map beats random patches by {0}.': '已检验：这张图优于随机图块，高 {0}。',
    'Tested: this map is above random patches by {0}, which may be chance.':
      '已检验：这张图比随机图块高 {0}，可能是偶然。',
    'Tested: this map is below random patches by {0}.': '已检验：这张图比随机图块低 {0}。',
    'With as many random patches hidden, {0} keeps {1} of the probability of both (mean of {2} orders).':
      '随机遮住同样多的图块时，{0}保留两者总概率的 {1}（{2} 个顺序的平均）。',
    'All patches, with the map': '全部图块和图', '{0} of {1} patches hidden': '遮住 {1} 个图块中的 {0} 个',
    '{0} switched off for the probabilities on the right.': '右侧的概率是关闭 {0} 后的结果。',
    'The picture could not be sent. {0}': '图片无法发送。{0}',
    'any other': '任何其他类别', running: '正在运行', slow: '较慢',
    'Stop ({0} of {1} maps)': '停止（{0} / {1} 张图）', 'Run and test {0} methods': '运行并检验 {0} 种方法',
    'Run {0} methods': '运行 {0} 种方法', Stop: '停止', 'Run {0} (may take minutes)': '运行{0}（可能需要几分钟）',
    'Skips {0} slow method; run it individually.': '跳过 {0} 种较慢的方法；请单独运行。',
    'Skips {0} slow methods; run those individually.': '跳过 {0} 种较慢的方法；请单独运行。',
    'Tested methods come first, best on top.': '检验过的方法排在前面，最好的在最上面。',
    'All maps side by side': '所有图并列', 'All maps side by side, best first': '所有图并列，最好的在前',
    ['Each map has its own scale: compare shapes, not brightness. In signed maps, red supports the class and blue '
      + 'opposes it.']: '每张图各有色标：请比较形状，而不是亮度。在带符号的图中，红色支持该类别，蓝色反对它。',
    'All patches have the same value, so this map does not explain the prediction': '所有图块的值都相同，因此这张图不能解释预测结果',
    'opposes · supports': '反对 · 支持', 'Computing {0}': '正在计算{0}', 'Explain the other picture: {0}': '解释另一张图：{0}',
    'Testing {0} maps': '正在检验 {0} 张图', 'Testing {0}': '正在检验{0}', 'Test this map': '检验这张图',
    'Deletion: strongest first': '删除：先遮住最强的', 'Insertion: strongest first': '插入：先显示最强的',
    'patches hidden': '已遮住的图块', 'patches shown': '已显示的图块', 'this map': '这张图',
    'mean of random orders': '随机顺序的平均', 'map of the centre': '画面中心图', '{0} random orders': '{0} 个随机顺序',
    'Area {0}; random orders: {1}.': '面积 {0}；随机顺序：{1}。', 'was {0}': '原为 {0}',
    'All patches are hidden, so there is no prediction.': '所有图块都被遮住，因此没有预测。',
    // Heads and Layers
    ['All heads are on. Tick “Click to switch heads off” and click some heads: the bars show how the prediction '
      + 'changes.']:
      '所有头都已打开。勾选“点击关闭头”，再点击一些头：条形显示预测如何变化。',
    'Off: {0} of {1}, layer.head {2}': '已关闭 {0} / {1}，层.头 {2}',
    'Photograph with the map of a head. Point at a head in the table to see its map.':
      '叠加了一个头的图的照片。指向表中的一个头，可以看到它的图。',
    'One dot per head, {0} in all.': '每个头一个点，共 {0} 个。',
    'Photograph with the principal components of a layer’s patches, or the prediction from each patch.':
      '叠加了一层图块的主成分或由每个图块得到的预测的照片。',
    'Patches that look alike to the model': '在模型看来相似的图块',
    'Layer {0}: patches that look alike to the model': '第 {0} 层：在模型看来相似的图块',
    '{0}, predicted from each patch': '{0}，由每个图块预测',
    'Layer {0}: {1}, predicted from each patch': '第 {0} 层：{1}，由每个图块预测',
    'Reading the layers': '正在读取各层', 'Click a small map to enlarge it.': '点击小图可以放大。',
    'This model has no classifier, so there are no predictions.': '这个模型没有分类器，因此没有预测。',
    'Value after each layer': '每一层之后的数值', 'Probability after each layer': '每一层之后的概率',
    // Files and links
    'Save this map': '保存这张图', 'Save the curves': '保存曲线', 'Save the maps side by side': '保存并列的图',
    'Save heads of the layer': '保存这一层的头', 'Save all layers': '保存所有层',
    'Save all heads of all layers': '保存所有层的所有头', 'Save the matrix': '保存矩阵', 'Save the statistic': '保存统计量',
    'Save the chart': '保存图表', 'Save the small maps': '保存小图', 'Heads of the layer': '这一层的头', 'All layers': '所有层',
    'All heads of all layers': '所有层的所有头', 'Picture (PNG)': '图片（PNG）', 'Picture (SVG)': '图片（SVG）',
    'Numbers (CSV)': '数值（CSV）', 'Numbers (NPZ)': '数值（NPZ）', 'There is nothing to save yet.': '还没有可以保存的内容。',
    'The page could not be saved. {0}': '无法保存页面。{0}', 'The picture could not be saved. {0}': '无法保存图片。{0}',
    'Link copied.': '链接已复制。', 'It contains your photograph.': '链接包含您的照片。',
    'It does not contain your photograph, which stays in this browser.': '链接不包含您的照片，照片只保存在这个浏览器里。',
    'The link is {0}': '链接是 {0}', 'The link is in the address bar.': '链接在地址栏中。',
    'The browser does not allow this page to copy.': '浏览器不允许此页面复制。',
    'This browser cannot write WebP. Send the page as HTML instead.': '这个浏览器不能生成 WebP。请改为发送 HTML 页面。',
    'The photograph is too detailed for a link. Send the page as HTML instead.':
      '照片细节太多，放不进链接。请改为发送 HTML 页面。',
    // Progress and errors
    'under a second': '不到 1 秒', 'about {0} s': '约 {0} 秒', 'about {0} min': '约 {0} 分钟',
    'number {0} in the queue': '排在第 {0} 位', 'Open at {0} pixels': '以 {0} 像素打开',
    'Could not load {0}. {1}': '无法载入{0}。{1}', 'Rollout could not be loaded. {0}': '无法载入 rollout。{0}',
    'This page has no rollout, because rollout from this many patches was too large to save.':
      '此页面没有 rollout，因为图块这么多时 rollout 太大，无法保存。',
    'This page has no permission to use the camera. Allow it in the address bar, then try again.':
      '浏览器无权使用摄像头。请在地址栏中允许，然后重试。',
    'No camera found. Connect one, or choose a file.': '没有找到摄像头。请连接摄像头，或选择文件。',
    'Another program is using the camera. Close it, then try again.': '另一个程序正在使用摄像头。请将其关闭，然后重试。',
    'This page cannot use the camera: browsers allow it only over https. Choose a file.':
      '此页面不能使用摄像头：浏览器只在 https 下允许。请选择文件。',
    'Waiting for the camera …': '正在等待摄像头……',
    'No photograph on the clipboard. Copy one first.': '剪贴板里没有照片。请先复制一张。',
    'The browser does not allow this page to read the clipboard. Press Ctrl+V, or Cmd+V on a Mac.':
      '浏览器不允许此页面读取剪贴板。请按 Ctrl+V，在 Mac 上按 Cmd+V。',
    'The server does not answer. Try again in a moment.': '服务器没有响应。请稍后重试。',
    'The answer was cut short. Try again.': '响应不完整。请重试。',
    'The photograph of this link is stored only in the browser that created the link.':
      '这个链接的照片只保存在创建链接的浏览器里。',
    'Expected the address of a picture of this site, got {0}. Save the picture and drop it here.':
      '需要本站图片的地址，得到的是 {0}。请保存图片，再拖到这里。',
    'Expected a picture of this site at {0}, got none. Check the address or choose a file.':
      '本站的 {0} 处没有图片。请检查地址，或选择文件。',
    'This page takes no checkpoints.': '此页面不接受权重文件。',
    'This site takes no checkpoints. Use vitviz app.': '本站不接受权重文件。请使用 vitviz app。',
    'A part of this page is missing: it was cut short when it was saved or sent.':
      '此页面缺少一部分：保存或发送时被截断了。',
    'A part of this page is damaged: it was cut short when it was saved or sent ({0}).':
      '此页面有一部分已损坏：保存或发送时被截断了（{0}）。',
    'This page does not contain that photograph.': '此页面不包含那张照片。',
    'This saved page has no server. Open the photograph in the app.': '这个保存的页面没有服务器。请在应用中打开照片。',
    ['The model needs WebAssembly SIMD and DecompressionStream, which this browser does not have. Chrome since 2021 '
      + 'and Firefox and Safari since 2023 have them. In this browser you can still explore the examples.']:
      '模型需要 WebAssembly SIMD 和 DecompressionStream，而这个浏览器没有。Chrome 自 2021 年起、Firefox 和 Safari 自 2023 年起具备。'
      + '在这个浏览器中仍可探索示例。',
    'Your photograph stays in this browser, which downloads the model once ({0} MB).':
      '您的照片只留在这个浏览器里，浏览器会下载一次模型（{0} MB）。',
    ['The model takes about {0} GB of memory, and this machine has {1} GB. If the browser closes the page, use the '
      + 'examples or choose a smaller model.']:
      '模型大约需要 {0} GB 内存，本机有 {1} GB。如果浏览器关闭页面，请使用示例或选择较小的模型。',
    'The part of the page that computes could not start. It needs a browser from 2023 or later, with WebAssembly.':
      '页面的计算部分无法启动。它需要 2023 年或更新的、支持 WebAssembly 的浏览器。',
    'Expected the file {0}, got none. Check the connection.': '没有得到文件 {0}。请检查网络连接。',
    'Expected a model of this site, got {0}. Choose one from the menu.': '本站没有模型 {0}。请从菜单中选择。',
    'Expected an example of this site, got {0}. Choose one of them.': '本站没有示例 {0}。请选择其中一个示例。',
    'Expected an open photograph, got one that is no longer open. Open it again.': '这张照片没有打开。请先打开它。',
    'Expected the model’s own input size or {0}, got {1}. Choose one of them.':
      '输入尺寸只能是模型自身的尺寸或 {0}，得到的是 {1}。请选择其中之一。',
    'A static site cannot save its lecture. Use vitviz export --lecture.':
      '静态网站不能保存讲解。请使用 vitviz export --lecture。',
  },
  // Texts that Python and the worker of static sites send, by their English. A value takes the place of {0}; what this
  // list lacks, such as rare errors, appears in English.
  sent: {
    // Methods
    'Attention rollout': '注意力 rollout', 'Value-weighted attention': '按值加权的注意力',
    'Gradient rollout': '梯度 rollout', 'Grad-CAM of attention': '注意力的 Grad-CAM', 'Grad-CAM of tokens': '词元的 Grad-CAM',
    'Generic attention explainability (GAE)': '通用注意力解释（GAE）', LeGrad: 'LeGrad 方法',
    'Transformer attribution': 'Transformer 归因', AttnLRP: 'AttnLRP 方法', 'Gradient of the pixels': '像素梯度',
    'Integrated gradients': '积分梯度', Occlusion: '遮挡', 'Kernel SHAP': 'Kernel SHAP 方法',
    '{0}, for {1}': '{0}：{1}', '{0} rather than {1}': '{0}而不是{1}', '{0} (logit)': '{0}（logit 值）',
    '{0} (cosine)': '{0}（余弦）', '{0} (value)': '{0}（数值）', 'some kind of {0}': '某种{0}',
    '{0}, ... ({1} classes)': '{0}……（{1} 个类别）', 'the other photograph': '另一张照片',
    'similarity to “{0}”': '与“{0}”的相似度', 'similarity to {0}': '与{0}的相似度',
    'the similarity to “{0}”': '与“{0}”的相似度', 'the similarity to {0}': '与{0}的相似度',
    'unit {0} of the features': '特征的第 {0} 个分量', attention: '注意力', score: '得分',
    'Outside the picture: {0}.': '图像之外：{0}。', '{0} on CLS': 'CLS {0}',
    '{0} on register {1}': '寄存器 {1} {0}', '{0} on distillation': '蒸馏词元 {0}',
    'Blank: all patches score the same.': '空白：所有图块得分相同。',
    'The attention of one token in one layer. It shows where information comes from, not what it is used for.':
      '一个词元在一层中的注意力。它显示信息从哪里来，不显示信息的用途。',
    'Attention followed through all layers. It is the same for every class.': '追踪注意力经过所有层。它对每个类别都相同。',
    'How much each token adds to the query token: the norm of attention times value.':
      '每个词元给查询词元增加了多少：注意力乘以值的范数。',
    'Attention that supports the class, combined over all layers.': '支持该类别的注意力，合并所有层。',
    'The attention of one layer, each head weighted by the gradient of the class score.':
      '一层的注意力，每个头按类别得分的梯度加权。',
    'The output tokens of one layer, each channel weighted by the gradient of the class score.':
      '一层输出的词元，每个通道按类别得分的梯度加权。',
    'Attention that supports the class, accumulated layer by layer.': '支持该类别的注意力，逐层累积。',
    ['How much the class score after each layer would rise if that layer attended more to a patch. The score is read '
      + 'from the tokens that the classifier uses, or from all with pooling=tokens, as in the authors\' code.']:
      '如果一层更关注某个图块，该层之后的类别得分会上升多少。得分取自分类器使用的词元；pooling=tokens 时与作者的代码一样，取自所有词元。',
    ['Relevance of the attention times its gradient, combined over all layers. It shows only evidence for a class; '
      + 'tiny changes of the photograph can change it noticeably. It is computed in double precision, which takes '
      + 'longer, and on an Apple device therefore on the CPU.']:
      '注意力的相关性乘以它的梯度，合并所有层。它只显示支持类别的依据；照片的微小变化会明显改变它。它以双精度计算，因此较慢；'
      + '在 Apple 设备上因此用 CPU 计算。',
    'The class score distributed over the tokens, layer by layer; all values add up to it.':
      '把类别得分逐层分配到各个词元；所有数值之和等于该得分。',
    'How strongly the class score reacts to small changes of a patch\'s pixels.': '类别得分对图块像素微小变化的反应有多强。',
    'How much each patch adds to the class score along a path from a blank picture to this one.':
      '沿着从空白图像到这张图像的路径，每个图块给类别得分增加了多少。',
    'How much the class score falls when a patch is hidden.': '遮住一个图块时，类别得分下降多少。',
    'How much each square of patches adds to the class score, averaged over subsets of other squares.':
      '每个由图块组成的方块给类别得分增加了多少，对其他方块的子集取平均。',
    'Estimated from {0} samples; the correlation between two such maps is about {1}.':
      '由 {0} 个样本估计：两张这样的图的相关系数约为 {1}。',
    // The test of a map
    ['Removing the patches that this map ranks highest lowers the score of {0} faster than {1}: {2}; showing them '
      + 'first raises it faster than {3}: {4}.']:
      '先去掉这张图排名最高的图块，{0}的得分下降得比{1}快：{2}；先显示它们，则上升得比{3}快：{4}。',
    ['This test cannot judge the map: for the whole image, the probability of {0} is {1}, so removing patches cannot '
      + 'lower it noticeably. Choose a more probable class, or explain this class rather than another.']:
      '该检验无法评判这张图：对整张图像，{0}的概率为 {1}，去掉图块不会使它明显下降。请选择概率更高的类别，或解释为什么是该类别而不是另一个。',
    'This is better than chance: a random map beats {0} in both comparisons in about {1} of the tests.':
      '这张图优于偶然：随机图在约 {1} 的检验中也能在两项比较中都胜过{0}。',
    ['This does not show that the map is better than chance: a random map beats {0} in one comparison in {1} of the '
      + 'tests, and in both in about {2}.']:
      '这并不表明这张图优于偶然：随机图在 {1} 的检验中能在一项比较中胜过{0}，在约 {2} 的检验中两项都胜过。',
    'A map of the distance to the picture\'s centre has the areas {0} and {1}.':
      '按到画面中心的距离排序的图，面积为 {0} 和 {1}。',
    'For the whole image, the probability of {0} is only {1}, so it cannot fall much.':
      '整张图像的{0}概率只有 {1}，能下降的余地很小。',
    'all {0} random orders': '全部 {0} 个随机顺序', '{0} of {1} random orders': '{1} 个随机顺序中的 {0} 个', none: '0',
    'area {0} against {1} ({2}-{3})': '面积 {0}，随机为 {1}（{2}–{3}）',
    'cosine area {0} against {1} ({2}-{3})': '余弦面积 {0}，随机为 {1}（{2}–{3}）',
    // Statistics of heads
    'Attention distance': '注意力距离', 'Attention entropy': '注意力熵', 'Attention entropy, relative': '相对注意力熵',
    'On CLS': '在 CLS 上', 'On registers': '在寄存器上', 'On itself': '在自身上', 'On neighbours': '在相邻图块上',
    'On other patches': '在其他图块上', 'Effective rank': '有效秩', 'Importance by gradient': '梯度重要性',
    'Probability drop': '概率下降', 'Score drop': '得分下降', patches: '图块', px: '像素', nats: '奈特',
    ['Mean distance from a patch to the patches it attends to, weighted by attention. Prefix tokens are excluded as '
      + 'queries and keys, and the rest of the row is rescaled to 1 (Dosovitskiy et al. 2021, figure 7).']:
      '从一个图块到它所关注图块的平均距离，按注意力加权。前缀词元既不作查询也不作键，行的其余部分重新缩放为 1（Dosovitskiy 等，2021，图 7）。',
    'The same in pixels of the photograph, in which patches may not be square.': '同上，以照片的像素计；在照片上图块不一定是正方形。',
    'Spread of attention over all tokens: 0 for a single token, ln N for N equal shares.':
      '注意力在所有词元上的分散程度：只在一个词元上为 0，N 份相等时为 ln N。',
    'The entropy divided by ln N: 1 for equal shares on all tokens.': '熵除以 ln N：所有词元份额相等时为 1。',
    'Share of the attention that goes to CLS.': 'CLS 得到的注意力份额。',
    'Share on all other prefix tokens: registers and the distillation token.': '其他前缀词元（寄存器和蒸馏词元）得到的份额。',
    'Share that stays on the token itself.': '留在词元自身的份额。',
    'Share on the 8 patches around the query patch (fewer at the border).': '查询图块周围 8 个图块得到的份额（边缘处较少）。',
    ['Share on all patches except the query and its neighbours. From a patch, the shares on the class token, '
      + 'registers, itself, neighbours and other patches add up to 1. From a prefix token, the share on itself is also '
      + 'counted as class token or registers.']:
      '除查询图块及其相邻图块外，所有图块得到的份额。从图块出发，类别词元、寄存器、自身、相邻图块和其他图块的份额之和为 1。从前缀词元出发，自身的份额也计入类别词元或寄存器。',
    ['Effective number of dimensions of the N × N attention matrix: the exponential of the entropy of its singular '
      + 'values (Roy and Vetterli 2007). 1 if all rows are equal, N if each token attends to a different one. It does '
      + 'not depend on the query.']:
      'N × N 注意力矩阵的有效维数：奇异值熵的指数（Roy 和 Vetterli，2007）。所有行相同时为 1，每个词元关注不同词元时为 N。它与查询无关。',
    'Absolute gradient of the target\'s score with respect to a scale on the head\'s output (Michel et al. 2019).':
      '目标得分对头输出的缩放系数的梯度的绝对值（Michel 等，2019）。',
    'Exact drop of the target\'s probability when the head\'s output is set to zero; negative if it rises.':
      '把头的输出设为零时，目标概率的准确下降量；上升时为负。',
    'Exact drop of the target\'s score (logit, value or cosine) when the head\'s output is set to zero.':
      '把头的输出设为零时，目标得分（logit、数值或余弦）的准确下降量。',
    '{0} has no position in the image': '{0} 在图像中没有位置',
    '{0} tokens exceed the limit of {1} for its O(N³) time': '{0} 个词元超过了上限 {1}，因为计算时间为 O(N³)',
    'it needs a singular value decomposition': '它需要奇异值分解',
    'the graphs do not compute gradients of heads': '计算图不计算头的梯度',
    // Progress
    'Running the model on the photograph': '正在对照片运行模型',
    'Computing rollout': '正在计算 rollout', 'Reading the text': '正在读取文字',
    'Reading the patches': '正在读取图块',
    'Computing a map': '正在计算图', 'Testing maps': '正在检验图', 'Measuring heads': '正在测量各个头',
    'Running the model again': '正在重新运行模型',
    'Loading the lecture’s numbers': '正在载入讲解的数字', 'Writing the page': '正在生成页面',
    'Uploading the checkpoint': '正在上传权重文件', 'Opening the photograph': '正在打开照片',
    'Measuring the heads': '正在测量各个头', 'Computing {0}': '正在计算{0}', 'Testing the map': '正在检验图',
    'Testing {0} maps': '正在检验 {0} 张图', 'Hiding one patch after another': '正在逐个遮住图块',
    'Switching heads off': '正在逐个关闭头', 'Loading the model, in MB': '正在载入模型（MB）', 'Trying the model': '正在试运行模型',
    // Photographs, models and sizes
    Church: '教堂', 'Church: Berlin Cathedral behind a row of trees': '教堂：一排树后面的柏林大教堂', Dog: '狗',
    'Dog: a German shepherd on a meadow': '狗：草地上的德国牧羊犬', Lizard: '蜥蜴',
    'Lizard on a twig of the same colour': '蜥蜴，趴在颜色相同的树枝上', Cat: '猫',
    'Cat: Chelsea looks into the camera': '猫：Chelsea 看着镜头',
    Giraffe: '长颈鹿', 'Two giraffes among bare trees': '光秃的树间的两只长颈鹿', Panda: '大熊猫', 'Giant panda on a rock': '岩石上的大熊猫',
    Koala: '考拉', 'Koala in the fork of a tree': '树杈上的考拉', Hedgehog: '刺猬', 'Hedgehog in the grass': '草丛中的刺猬',
    'None of this model\'s classes fits this example, so it shows the best match.':
      '这个模型没有适合此示例的类别，因此显示最接近的类别。',
    'The model gets this example wrong. {0}.': '模型把这个示例认错了。{0}。',
    'This model has no classifier, so it makes no predictions. Its attention can be explored as usual.':
      '这个模型没有分类器，因此没有预测。它的注意力可以照常探索。',
    'This model returns {0} numbers without class names. Its attention can be explored as usual.':
      '这个模型输出 {0} 个没有类别名称的数。它的注意力可以照常探索。',
    'On this machine': '本机的模型', 'Downloaded when chosen': '选择时下载',
    '{0} ({1})': '{0}（{1}）', '{0} · {1}': '{0} · {1}',
    'licence unknown': '许可证未知', 'licence not stated': '许可证未注明',
    'the first Vision Transformer, trained on 14 million labelled photographs':
      '第一个 Vision Transformer，用 1400 万张带标签的照片训练',
    'the same design, trained on ImageNet\'s 1.3 million photographs alone': '同样的设计，只用 ImageNet 的 130 万张照片训练',
    'distilled from a convolutional network through an additional token': '通过一个额外的词元从卷积网络蒸馏',
    'the plain design with a better training recipe': '普通的设计，更好的训练方法',
    'patches attend only within windows, and merge into larger ones from stage to stage':
      '图块只在窗口内互相关注，并逐阶段合并成更大的图块',
    'trained without labels; its attention heads outline objects': '不用标签训练；它的注意力头勾勒出物体',
    'registers keep empty background free of stray attention': '寄存器使空白背景不受杂散注意力干扰',
    'registers keep empty background free of stray attention; a linear classifier for ImageNet':
      '寄存器使空白背景不受杂散注意力干扰；带有 ImageNet 线性分类器',
    'rotary positions: made for photographs of any size': '旋转位置编码：适用于任何尺寸的照片',
    'trained to fill in three quarters of the patches': '训练目标是填补四分之三的图块',
    'trained on captions, then on ImageNet; few and large patches': '先用图片说明训练，再用 ImageNet；图块少而大',
    'trained on captions; no class token, attention pooling': '用图片说明训练；没有类别词元，采用注意力池化',
    // Errors
    'Expected a photograph as {0}, got {1} in {2}. Save or export it as JPEG or PNG.':
      '需要 {0} 格式的照片，{2}是{1}。请另存或导出为 JPEG 或 PNG。',
    'Expected a photograph as {0}, got {1}, which is empty. Save or upload it again.':
      '需要 {0} 格式的照片，{1}是空的。请重新保存或上传。',
    ['Expected a complete photograph as {0}, got {1}, which cannot be decoded ({2}). Save it again as JPEG or PNG, or '
      + 'upload it again.']: '需要完整的 {0} 格式照片，{1}无法解码（{2}）。请另存为 JPEG 或 PNG，或重新上传。',
    'JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF': 'JPEG、PNG、WebP、GIF、BMP、TIFF 或 AVIF', 'this file': '这个文件', text: '文本',
    'a PDF document': 'PDF 文档', 'a ZIP archive or an office document': 'ZIP 压缩包或办公文档',
    'a video or a similar file': '视频或类似的文件', 'an SVG drawing, which has no pixels,': '没有像素的 SVG 图形',
    'a damaged JPEG': '损坏的 JPEG', 'a damaged PNG': '损坏的 PNG', 'a Photoshop document': 'Photoshop 文档',
    'an unknown format (first bytes {0})': '未知格式（开头的字节 {0}）',
    ['Expected a photograph that Pillow reads, got a HEIC photo (the format of many phones) in {0}. Run {1}, or save '
      + 'it as JPEG or PNG.']: '{0}是 HEIC 照片（许多手机的格式），服务器不能读取。请另存为 JPEG 或 PNG，或运行 {1}。',
    'Expected an image of at most {0} megapixels, got {1} ({2} megapixels) in {3}. Make it smaller and try again.':
      '图像最大为 {0} 百万像素，{3}有 {1}（{2} 百万像素）。请缩小后重试。',
    'Expected an image of at most {0} megapixels, got far more in {1}. Make it smaller.':
      '图像最大为 {0} 百万像素，{1}远大于此。请缩小。',
    ['Expected sides of at most {0} pixels and an aspect ratio of at most {1}, got {2} in {3}. Crop it to the part '
      + 'that matters.']:
      '边长最多 {0} 像素，且一边最多是另一边的 {1} 倍，{3}为 {2}。请裁剪出重要的部分。',
    'Expected an image with pixels, got {0} in {1}. Choose another one.': '图像必须有像素，{1}为 {0}。请选择另一张。',
    'Expected an image that is decoded in {0} s, got {1}, which takes longer. Save it again as JPEG.':
      '{1}解码超过 {0} 秒。请另存为 JPEG。',
    'Expected a request of at most {0} MB. Send less.': '请求最大为 {0} MB。请选择较小的文件。',
    'Expected a file of at most {0} MB. Send a smaller one.': '文件最大为 {0} MB。请选择较小的文件。',
    'Expected a photograph of at most {0} MB, got {1} MB. Make it smaller.': '照片最大为 {0} MB，这张有 {1} MB。请缩小。',
    ['Expected a picture that this browser can read, got something else. Choose another file, such as a JPEG, PNG or '
      + 'WebP.']:
      '这个浏览器不能读取此文件。请选择另一个文件，例如 JPEG、PNG 或 WebP。',
    'Expected at most {0} megapixels, got {1}. Make the photograph smaller.': '照片最大为 {0} 百万像素，这张是 {1}。请缩小。',
    'Busy: too many requests are waiting. Try again in about {0} s.': '服务器繁忙：等待的请求太多。请在约 {0} 秒后重试。',
    'Busy: {0} requests are waiting. Try again in about {1} s.': '服务器繁忙：有 {0} 个请求在等待。请在约 {1} 秒后重试。',
    'Busy: {0}. Try again in {1} s.': '服务器繁忙：{0}。请在 {1} 秒后重试。',
    'this address has too many requests open': '此地址的未完成请求太多', 'too much is being sent': '正在发送的数据太多',
    'too many answers to this address are waiting to be read': '此地址有太多响应等待读取',
    ['Expected an input of at most {0} patches that fits into memory, got {1}, which take about {2} GB. Choose at most '
      + '{3} pixels.']: '输入最多 {0} 个图块，且须能放入内存；现在是 {1} 个，约需 {2} GB。请选择最多 {3} 像素。',
    ['Expected an input of at most {0} patches that fits into memory, got {1}, which take about {2} GB. Choose another '
      + 'model.']: '输入最多 {0} 个图块，且须能放入内存；现在是 {1} 个，约需 {2} GB。请选择另一个模型。',
    ['Expected a computation that fits into memory and time, got {0} on {1} patches, which takes about {2} GB and {3} '
      + 'forward passes. Open the photograph at {4} pixels or fewer.']:
      '{1} 个图块的“{0}”需要约 {2} GB 内存和 {3} 次前向计算，超过了上限。请以 {4} 像素或更小的尺寸打开照片。',
    ['Expected a computation that fits into memory and time, got {0} on {1} patches, which takes about {2} GB and {3} '
      + 'forward passes. Choose another method or statistic.']:
      '{1} 个图块的“{0}”需要约 {2} GB 内存和 {3} 次前向计算，超过了上限。请选择其他方法或统计量。',
    'browser, WASM': '浏览器，WASM',
    'statistics of heads': '头的统计量', 'reading all layers': '读取所有层', 'an intervention': '干预',
    'There was not enough memory. Choose a smaller input size, or try again.': '内存不足。请选择较小的输入尺寸，或重试。',
    'This could not be computed. Try again, or choose something else.': '无法计算。请重试，或选择其他内容。',
    'The computation was stopped. Ask again.': '计算已停止。请重试。',
    'Expected the name of a model, such as {0}; got {1}. Check the name.': '需要模型的名称，例如 {0}；得到的是 {1}。请检查名称。',
  },
  // The blocks of the tab "How to read this" in page order, as HTML.
  help: [
    '如何阅读',
    '<b>您看到的是什么。</b>模型把照片切成方形图块。每个图块成为一个<em>词元</em>，即一串数字。另有一个词元 <b>CLS</b>，收集分类所需的信息。在每一层，每个词元都从所有词元获取信息；权重就'
      + '是它的<b>注意力</b>。一层并行计算多次注意力，每个<b>头</b>一次。',
    '<b>颜色。</b>所选词元越关注一个图块，图块越亮。每一行注意力的总和是 100 %，其中一部分可能在照片之外，在 CLS 或寄存器词元上；页面会写出这一份额。色条表示色标。默认每张缩略图有各自的色标，请比'
      + '较形状而不是亮度；也可以在<em>更多</em>中让缩略图共用一个色标。',
    '<b>起点。</b>注意力总是从一个词元出发。从 <em>CLS</em> 出发，可以看到模型在哪里收集预测所需的信息。点击一个图块，可以看到它关注哪里。距离因头和模型而异，“注意力头”标签页给出测量值。',
    '<b>合并的头。</b>所有头的平均仍是总和为 100 % 的分布。各头的最大值或最小值不是，因此页面把这样的行重新缩放到 100 %。',
    '<b>注意力</b>显示一层。<b>Rollout</b>（Abnar 和 Zuidema，2020）合并所有层：它把各层的注意力矩阵相乘，跳跃连接占一半权重，由此估计哪些图块对该词元有贡献。',
    '<b>相似图块</b>比较一层中描述图块的向量。指向一个图块：其他图块的颜色是两个向量夹角的余弦，方向相同时为 1。'
      + '使用<em>对比</em>时，第二张照片显示其中哪些图块相似，连线连接互为最近邻的图块。这里的相似是对模型而言，而不是对眼睛而言。',
    '<b>解释。</b>这些图显示哪些图块支持一个类别。各种方法依据不同：通过注意力的梯度（GAE、LeGrad）、逐层回传的相关性（AttnLRP），或遮住图块的影响（遮挡）。<em>而不是</em>用来比较两'
      + '个类别：逐步遮住最支持第一个类别的图块，直到答案翻转，再把前后两张图保存为一张卡片。在带符号的图中，红色支持该类别，蓝色反对它。各种方法并不一致，请加以检验：'
      + '<b>这张图可信吗？</b>会遮住图中排名最高的图块，并与随机遮住图块相比较。如果概率下降得不比随机更快，这张图就不能解释预测。',
    '<b>注意力头</b>和<b>层。</b>“注意力头”标签页按统计量（例如注意力距离）比较所有的头。点击一个头可在“探索”中查看，也可以关闭一些头，观察预测的变化。“层”标签页显示分类器在每一层之后会预测什么'
      + '，以及哪些图块相似。两个标签页的目标都是“解释”中的目标。',
    '这些图不能说明什么',
    '<b>在哪里，而不是为什么。</b>注意力表示一个词元读取了什么，不表示模型如何使用它。一个图块可以得到注意力而不影响结果。注意力和 rollout 对每个类别都相同。',
    '<b>Rollout 很粗略。</b>它同等对待所有的头，忽略值、MLP 和符号。在很深的模型中，每个词元的结果趋于同一团亮斑。',
    '<b>平均会掩盖单个的头。</b>对头取平均、最大和最小得到三幅不同的图。下结论之前，请看单个的头。',
    '<b>模型必须选择。</b>分类器只认识训练时的类别，它们列在预测下方。对于其他任何东西，它给出最接近的类别。如果模型用类别已知的照片校准过，当概率低于某个阈值时，页面会写“不确定”；达到阈值的预测中，至少 90 % 是正确的。'
      + '这个阈值不能识别不属于任何类别的物体。',
    '<b>空白背景得到很高的注意力</b>很常见：大模型把这样的图块当作草稿空间（Darcet 等，2024）。',
    '其他模型和更小的图块',
    '顶部的<b>菜单</b>列出本机的模型和已发布的模型，后者在选择时下载。页面打开时使用您上次在这个浏览器中选择的模型。如果菜单末尾有<em>另一个模型</em>，可以输入名称或上传文件。没有类别名称的模型只显'
      + '示注意力，没有预测。',
    '<b>以文字为类别。</b>带文本塔的模型（CLIP、SigLIP）可以按任意文字分类。在预测下方输入简短的说明，用逗号分隔，例如'
      + '“a photo of a cat, a photo of a sofa”；含有逗号的文字请用英文引号括起来。它们就成为页面的类别。清空输入框即可恢复模型自己的类别。',
    '<b>输入尺寸</b>在切割之前放大照片，因此图块更多、更小。尺寸加倍，图块是四倍，计算量略多于四倍。模型在训练时的尺寸下效果最好：尺寸更大时图更精细，但预测可能变差。',
    '操作',
    '点击一个图块，或选中照片后使用方向键；<kbd>c</kbd> 返回 CLS。点击照片旁的头或层可以放大。<em>更多</em>中有其他控件和数值。<kbd>?</kbd> 列出所有按键。',
  ],
  lecture: { path: '照片在模型中的处理流程', back: '上一步', next: '下一步', code: '二维码',
    notes: '讲稿', waiting: '正在载入这张照片的数字……',
    own: '链接不包含您自己的照片，照片只保存在这个浏览器里。',
    here: '这个地址只在本机有效。请在手机能够访问的网络上提供此页面。',
    scan: '在手机上打开这一步' },
  exercises: { title: '练习', yours: '您的答案', check: '检查', solve: '显示答案', numbers: '在这一步中显示这些数',
    print: '打印全部练习', right: '正确。', solution: '答案：', wrong: '还不对。请再看看这一步。', numberMissing: '请先输入一个数。',
    choiceMissing: '请先选择一个答案。', patchMissing: '请先点击小照片中的一个图块。', none: '请点击这张照片中的一个图块。',
    picked: '您选的图块：第 {0} 行第 {1} 列', aria: '带图块网格的照片。用方向键或点击选择答案。',
    heading: 'Vision Transformer 怎样读这张照片', name: '姓名：', answer: '答案：', place: '第 {0} 行第 {1} 列', solutions: '答案',
    input: '模型的输入。行和列按图块计数。', map: '右图：每个图块的数值，从暗（小）到亮（大）。',
    signed: '右图：每个图块的数值，红色为正，蓝色为负。', out: '打叉的图块不参与。' },
  stages: { question: '问题', pixels: '像素', patches: '图块', embedding: '嵌入', positions: '位置', cls: 'CLS',
    residual: '残差流', norm: '归一化', attention: '一个注意力头', projection: '输出投影', mlp: 'MLP', heads: '所有注意力头',
    cost: '计算量', prediction: '预测', training: '训练', explanation: '解释', closing: '总结' },
  question: {
    task: '答案：在 {0} 个类别中，它是哪一个？', none: '{0} 没有类别名称，因此没有答案。',
    origin: '这些数字是模型对这张照片的输出。后面的步骤说明它们从何而来。',
    cnn: '3 × 3 卷积到第 {0} 层的感受野', cnnCount: '{1} 个图块中有 {0} 个能影响这个图块。',
    vit: '这个图块在第 {0} 层关注什么：所有头的平均',
    vitCount: '这个图块有 {0} 的注意力落在这个感受野之外的图块上。',
    aria: '照片。用方向键移动图块。',
  },
  pixels: {
    photo: '照片', channels: '输入的三个通道',
    level: '亮度，0 到 255', share: '÷ 255', less: '− 均值', by: '÷ 标准差', number: '模型的输入值',
    size: '{0} × {1} 像素 = {2} 个数', lost: '只保留了 {0} 的数值。',
    enlarged: '照片被放大：输入的数值更多，但细节没有增加。',
    whole: '输入包含整张照片，没有裁剪。', cropped: '输入包含照片面积的 {0}，斜线部分被裁掉了。',
    pixel: '第 {0} 行第 {1} 列的像素。指向其他像素可查看它的数值。',
    aria: '照片。斜线部分已被裁掉。用方向键移动图块。',
  },
  patches: {
    grid: '网格：点击一个图块', pixels: '它的像素', which: '第 {0} 行第 {1} 列的图块',
    reading: '{0}，图块内第 {1} 行第 {2} 列：{3}（亮度 {4}）',
    count: '它的 {0} × {0} × 3 = {1} 个数，排成一行',
    all: '所有图块按阅读顺序排成一行：这是第 {0} 个，共 {1} 个',
    shuffle: '打乱图块', order: '阅读顺序',
    nowShuffled: '由打乱的图块得出的预测', nowOrdered: '由照片得出的预测', verdict: '{0}：按阅读顺序 {1}，现在 {2}。',
    aria: '带图块网格的照片。用方向键移动图块。',
  },
  embedding: {
    patch: '图块', filter: '滤波器', terms: '乘积',
    map: '第 {0} 个滤波器对每个图块的响应', sum: '图块乘以第 {0} 个滤波器：一个数',
    adds: '{0} 个乘积之和为 {1}，加上偏置 {2}，得到 {3}',
    vector: '全部 {0} 个滤波器：图块成为 {0} 维向量',
    wall: '{0} 个滤波器的图像：点击一个', unit: '滤波器响应', slider: '滤波器编号',
    aria: '叠加了滤波器响应的照片。用方向键移动图块。',
    some: '共有 {0} 个滤波器，本页无法全部显示，这里是范数最大的 {1} 个。',
  },
  positions: {
    tokens: '{0} 个词元，每个 {1} 个数',
    start: '{0}：不是从照片上切下来的。它们的初值由训练得到，对每张照片都一样；各层再从图块中收集信息。',
    alone: '这个模型没有前缀词元，由所有图块得出预测。',
    learned: '这个模型：学习得到的位置编码', sincos: '这个模型：固定的正弦和余弦位置编码',
    sincos1d: '这个模型：按阅读顺序的固定正弦和余弦位置编码',
    rotary: '这个模型：每层中的旋转位置编码',
    'learned+rotary': '这个模型：学习得到的位置编码，以及每层中的旋转位置编码',
    relative: '这个模型：相对位置偏置，每个行列差对应一个学习得到的数', none: '这个模型没有位置编码',
    sine: '对照：正弦和余弦位置编码',
    similar: '第 {0} 行第 {1} 列的位置与其他各位置的相似度：两个向量的余弦。它与照片内容无关。',
    wall: '网格各处位置的相似度图', unit: '余弦',
    aria: '叠加在照片上的位置相似度。用方向键移动图块。',
    without: '位置重要吗？同样的图块，两种顺序，有位置和没有位置',
    ordered: '阅读顺序', shuffled: '打乱', orderedWithout: '阅读顺序，没有位置', shuffledWithout: '打乱，没有位置',
    same: '没有位置时，两种顺序给出相同的预测：注意力读取的是词元的集合，而不是序列。',
    missing: '无法取得这个模型的位置编码，图中显示的是正弦和余弦位置编码。',
  },
  cls: {
    start: '第 1 层之前的 {0}：{1} 个学习得到的数，对每张照片都一样', mean: '图块平均',
    none: '这个模型没有 CLS，由所有图块得出预测，因此这里用图块的平均代替。',
    chart: '与第 1 层之前的同一词元的余弦', meanPatch: '图块（平均）',
    title: '{0} 在第 {1} 层关注什么：所有头的平均', shares: '第 {1} 层中 {0} 的注意力去向',
    patches: '所有图块合计', row: '各条之和为 100 %。图中只显示落在图块上的部分。',
    wall: '{0} 在每一层关注什么：点击一个。每张图有各自的色标',
    aria: '叠加了 CLS 注意力的照片。',
  },
  residual: {
    chart: '词元的长度，以及每层加上的长度',
    length: '进入该层的词元的长度', added: '该层加上的向量的长度',
    grown: '{0}的词元进入第 1 层时长度为 {1}，进入第 {3} 层时为 {2}。',
    title: '进入第 {0} 层的每个词元与第 1 层之前的同一词元的余弦', unit: '余弦',
    left: '{0}的词元进入第 {1} 层时，与它最初的向量的余弦为 {2}。',
    wall: '进入每一层的词元与第 1 层之前的同一词元的余弦（同一色标，0 到 1）',
    aria: '叠加了各词元与其起点相似度的照片。用方向键移动图块。',
  },
  block: { token: '{0}的词元。', saved: '保存的页面只包含这个图块的数字。' },
  norm: {
    stream: 'x：进入这一层的词元，{0} 个数。点击一个',
    moments: '均值 {0}，标准差 {1}。第 {2} 个数：{3} → 归一化后 {4} → 乘以学习得到的比例并加上偏移后 {5}。',
    normed: 'norm(x)：由它计算查询、键和值',
    x: 'x，长度 {0}', plus: '+ attention(norm(x))，长度 {0}', equals: '= x + attention(norm(x))，长度 {0}',
    channel: '第 {0} 个数：{1} {2} = {3}。三幅图用同一比例。',
  },
  attention: { guessFirst: '先猜：隐藏注意力图', next: '下一个乘积', allProducts: '全部乘积',
    predict: '这个头会最关注哪个图块？点击您的猜测。',
    chosen: '您的猜测：{0}。下一屏给出答案。',
    ranked: '您的猜测（{0}）在 {2} 个图块中排第 {1}，得到 {3}。', strongest: '最强的图块是{0}，得到 {1}。',
    hidden: '一个头，从{0}出发', so: '{1} 个乘积中的 {0} 个', tuned: '用您选择的缩放和温度计算的 softmax',
    scale: '缩放', temperature: '温度',
    tunedSum: '最大的权重：{0}，{1}。权重的分散程度相当于均匀分布在 {3} 个词元中的 {2} 个上。',
    head: '头', from: '起点', map: '图', scaled: '查询 · 键 / √d', weights: 'softmax',
    given: 'softmax × 值的范数', first: '查询乘以键', second: '除以 √d，再做 softmax', third: '对值加权求和',
    query: '查询：', key: '键：', product: '逐项乘积', all: '对所有词元的 softmax', token: '词元', dot: 'q · k',
    powers: 'e^(s − 最大值)', other: '个其他词元', sum: '总和', out: 'softmax × 值 的总和',
    beside: '在图像之外', waiting: '正在载入这一层的数字……', looks: '这个头关注哪里',
    more: '{0} 个最大的乘积，以及其余 {1} 个之和' },
  heads: {
    kinds: '这个模型有哪些种类的头：点击一种',
    prefix: '关注 CLS 或寄存器', prefixRule: '这些词元得到 {0} 以上',
    self: '关注查询图块自身', selfRule: '查询图块得到 {0} 以上',
    near: '关注相邻图块', nearRule: '查询图块和周围八个图块得到 {0} 以上',
    even: '均匀地关注所有词元', evenRule: '分散度 {0} 以上',
    same: '对任何查询都关注同样的图块', sameRule: '各行相差不到 {0}',
    choosy: '不同的查询关注不同的图块', choosyRule: '其余的头',
    studied: '对 {1} 个图块中的 {0} 个查询图块取平均。阈值由我们设定，有些头接近阈值。',
    reading: '正在读取所有头的注意力：{0}', title: '第 {0} 层，{1}，从这个图块出发',
    mean: '所有头的平均', max: '所有头的最大值', min: '所有头的最小值',
    wall: '每一层的每个头，从这个图块出发：点击一个。每张图有各自的色标',
    chart: '各个头的注意力距离（图块数）',
    chartWords: '每个点代表一个头：从图块到它所关注图块的平均距离。',
    aria: '叠加了一个头的注意力的照片。用方向键移动图块。',
  },
  projection: {
    outs: '{0} 个头对这个词元的输出：每个 {1} 个数', head: '第 {0} 个头',
    joined: '拼接：{0} × {1} = {2} 个数', matrix: '输出投影之后，{0} → {1}：每个头一行（{2} 行）',
    sum: '各行与偏置之和：加到词元上，长度 {0}', shares: '每个头加上的向量的长度',
    cancel: '总和的长度小于这些长度相加，因为各个头的向量方向不同。',
  },
  mlp: {
    in: '第二次归一化之后的词元：{0} 个数', hidden: '{1} 之后的隐藏层：{0} 个数',
    out: 'MLP 加到词元上的向量：{0} 个数', before: '激活函数之前', after: '{0} 之后',
    chart: '{0} 个隐藏单元，按数值从小到大', rank: '隐藏单元的比例',
    active: '{1} 个隐藏单元中有 {0} 是正的。最大的是第 {2} 个：{3}。',
    compared: '在这一层，注意力给这个词元加上长度为 {0} 的向量，MLP 加上长度为 {1} 的向量。',
  },
  cost: {
    matrix: '第 {0} 层第 {1} 个头：每个词元（行）对每个词元（列）的注意力',
    tokens: '{0} 个图块和 {1} 个前缀词元：N = {2}', weights: '一个头有 {0} × {0} = {1} 个权重',
    all: '× {0} 个头 × {1} 层 = 这张照片共 {2} 个权重',
    twice: '边长加倍：{0} 个词元，每个头 {1} 个权重，是原来的 {2} 倍',
    side: '输入的边长', pixels: '{0} × {1} 像素', chart: '所有层的乘法次数（十亿）',
    across: '输入的高度（像素）', pairs: '词元两两之间：随 N² 增长', rest: '每个词元单独：随 N 增长',
    share: '{0} 个词元：{1} 的乘法用于词元两两之间；共 {2} 十亿次，是模型自身尺寸的 {3} 倍。',
  },
  training: {
    chart: '每个 epoch 之后的测试准确率', epoch: 'epoch', accuracy: 'vit-cifar10',
    chance: '在十个类别中随机猜测',
    facts: ['训练 vit-cifar10 时在 10,000 张测试照片上的记录，它是 vitviz 自带的小模型：先训练 50 个 epoch，再用更低的学习率训练 32 个。',
      '在两个 CPU 核心上用了 5.4 小时，最后达到 84.21 %。'],
  },
  closing: {
    photoSays: '{0} 个数', patches: '图块', patchesSay: '{0} × {1} 个边长 {2} 像素的方块',
    tokens: '词元', tokensSay: '带位置的图块向量，以及前缀词元',
    blocksSay: 'x + attention(norm(x))，再 x + MLP(norm(x))；每层 {0} 个头，共 {1} 个注意力权重',
    classesSay: '每个类别一个数，softmax 把它们变成概率',
    none: '{0} 没有类别名称。', aria: '照片。',
  },
  prediction: { now: '第 {0} 层之后，分类器会预测',
    title: '{0}，由每个图块预测，第 {1} 层之后',
    rest: '所有其他类别', each: '每一层之后', image: '由整张图像预测',
    patch: '由{0}的图块预测', map: '由每个图块预测', last: '这就是模型的预测。',
    alone: '分类器单独应用于每个图块。靠后的层会把全局信息复制到所有图块，因此处处同色并不表示每个图块都属于这个类别。',
    none: '这个模型没有类别名称，因此没有预测。' },
  explanation: {
    titles: ['Rollout：穿过所有层的注意力', 'GAE：类别的依据（基于梯度）'], test: '逐步显示图块，比较两张图',
    band: '随机顺序的范围', chart: '插入曲线', found: '分歧最大的地方',
    hide: '遮住一张图中排名最高的图块', hidden: '遮住', nothing: '不遮住',
    scattered: '分散的图块', hiding: '去掉 {2} 个图块中的 {1} 个之后 {0} 的概率。图中遮住的是 GAE 排名最高的图块。',
    example: '一个影响很大的例子：{0}',
    none: '这个模型没有类别名称，因此没有可以解释的预测。', waiting: '正在计算两张图',
    alike: '两张图的等级相关：{0}（1 表示顺序相同，0 表示无关）。',
    differ: '图块 {0}（{1}）：在 {3} 个图块中，rollout 排第 {2}，GAE 排第 {4}。',
    lost: '去掉图块 {0} 及其周围的图块：{1} {2} → {3}。',
    areas: '曲线下面积：rollout {0}，GAE {1}，随机 {2}。面积越大，说明图把关键图块排得越靠前。',
  },
};
